"""Names: what KubeRay refuses, and what becomes too long once a suffix is added to it."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Manifest
from kuberay.check.nodes import Node
from kuberay.check.pods import Pod
from kuberay.check.rules import Problem, error, note, rule, warning

_LONGEST = {"RayCluster": 53, "RayService": 47, "RayJob": 47, "RayCronJob": 36}
_LONGEST_MULTI_HOST = {"RayCluster": 41, "RayService": 35, "RayJob": 35, "RayCronJob": 24}
"""So that `<cluster>-headless` has at most the 50 characters that the webhook keeps."""

_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_DNS_1123 = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


@rule(Manifest, "object", "Kubernetes API server")
def kind_and_version(manifest: Manifest) -> Iterator[Problem]:
    """Every object has an apiVersion, a kind and a name."""
    node = manifest.node
    if not isinstance(node.value, dict):
        yield error(node, "is no object: the API server refuses it", "write a mapping with apiVersion and kind")
        return
    missing = [key for key in ("apiVersion", "kind") if not isinstance(node[key].value, str)]
    if missing:
        why = f"has no {' and no '.join(missing)}, so it is no Kubernetes object: kubectl refuses it"
        yield error(node[missing[0]], why, "write apiVersion and kind, such as ray.io/v1 and RayService")
        return
    if manifest.group == "ray.io" and node["apiVersion"].value != "ray.io/v1":
        old = node["apiVersion"].value == "ray.io/v1alpha1"
        yield (warning if old else error)(
            node["apiVersion"],
            "v1alpha1 is older than numOfHosts, labels, authOptions and others: the API server drops those fields, and "
            "KubeRay 1.9 will not serve it"
            if old
            else f"{node['apiVersion'].value} is no version that KubeRay serves: the API server refuses the object",
            "write apiVersion: ray.io/v1",
        )
    named = manifest.metadata["name"].present or manifest.metadata["generateName"].present
    if not named and (reader := _reader(manifest)):
        yield note(node["kind"], f"is read by {reader}: it is no object of the API server", "do not apply it")
    elif not named:
        yield error(manifest.metadata["name"], "has no name: the API server refuses it", "write metadata.name")


def _reader(manifest: Manifest) -> str | None:
    """The program whose own file this is, which only looks like an object."""
    group, version = manifest.group, str(manifest.node["apiVersion"].value)
    if version == "v1" and manifest.kind == "Config":
        return "kubectl, as a kubeconfig"
    for start, reader in (
        ("skaffold", "Skaffold"),
        ("kind.x-k8s.io", "kind"),
        ("k3d.io", "k3d"),
        ("audit.k8s.io", "kube-apiserver"),
    ):
        if version.startswith(f"{start}/"):
            return reader
    if group.endswith(".config.k8s.io") or group.startswith("config.") or group.startswith("kubeadm.k8s.io"):
        return "a program of Kubernetes as its configuration"
    return None


@rule(Manifest, "name", "KubeRay 1.7: ValidateRayClusterMetadata and its siblings")
def ray_name(manifest: Manifest) -> Iterator[Problem]:
    """KubeRay refuses long names: it appends to them, and the API server allows 63 characters."""
    name, node = manifest.name, manifest.metadata["name"]
    if not manifest.ray or name is None:
        return
    most = _LONGEST[manifest.kind]
    if len(name) > most:
        yield error(
            node,
            f"has {len(name)} characters: the KubeRay operator refuses a {manifest.kind} of more than {most}",
            f"shorten it to {most} characters",
        )
    if not _DNS_1035.match(name):
        yield error(
            node,
            f"{name!r} is no DNS label: the KubeRay operator refuses it",
            "use lower-case letters, digits and hyphens, starting with a letter",
        )


@rule(Cluster, "name-multi-host", "GKE TPU webhook: generateHeadlessServiceName; KubeRay 1.7: headless service")
def multi_host_name(cluster: Cluster) -> Iterator[Problem]:
    """The webhook keeps only the last 50 characters of `<cluster>-headless`, KubeRay all (ai-on-gke PR#972)."""
    manifest, name = cluster.manifest, cluster.manifest.name
    if name is None or not any(group.tpu and group.multi_host for group in cluster.groups):
        return
    most = _LONGEST_MULTI_HOST[manifest.kind]
    if most < len(name) <= _LONGEST[manifest.kind]:
        yield error(
            manifest.metadata["name"],
            f"has {len(name)} characters: with slices of several hosts the GKE TPU webhook cuts the name of the "
            "headless Service, <cluster>-headless, to its last 50 characters and KubeRay does not, so "
            "TPU_WORKER_HOSTNAMES name hosts that do not exist and JAX hangs (ai-on-gke PR#972)",
            f"shorten it to {most} characters",
        )


@rule(Cluster, "group-name", "GKE TPU webhook: Pod hostnames; KubeRay 1.7: Pod labels")
def group_names(cluster: Cluster) -> Iterator[Problem]:
    """A group's name becomes a Pod label and, on slices of several hosts, part of a hostname."""
    seen: dict[str, Node] = {}
    for group in cluster.groups:
        node, name = group.node["groupName"], group.name
        if node.placeholder:
            continue
        if not name:
            yield error(node, "has no groupName: the CRD's schema refuses it", "name each worker group")
            continue
        if name in seen:
            consequence = (
                "their slices get the same TPU_NAME, and reservations mix their hosts"
                if group.tpu
                else "KubeRay takes the Pods of one for those of the other, and deletes and makes them in turn"
            )
            yield error(
                node,
                f"two worker groups are named {name}: nobody refuses it, but {consequence}",
                "give each worker group its own name",
            )
        seen[name] = node
        if not _DNS_1123.match(name) or len(name) > 63:
            hostname = group.tpu and group.multi_host
            why = (
                "the GKE TPU webhook makes Pod hostnames of it, and the API server refuses those Pods"
                if hostname
                else "it becomes the Pod label ray.io/group, and KubeRay has to change it in Pod names"
            )
            yield (error if hostname else warning)(
                node, f"{name!r} is no DNS label: {why}", "use lower-case letters, digits and hyphens"
            )
        elif group.tpu and group.multi_host:
            replica, worker = max(0, (group.most or 1) - 1), (group.hosts or 1) - 1
            hostname = f"{name}-{replica}-{worker}"
            if len(hostname) > 63:
                yield error(
                    node,
                    f"Pod hostnames such as {hostname} have {len(hostname)} characters: the API server refuses "
                    "Pods with more than 63",
                    f"shorten the group's name by {len(hostname) - 63}",
                )


@rule(Manifest, "duplicate-object", "kubectl apply")
def duplicate_objects(manifest: Manifest) -> Iterator[Problem]:
    """Two objects of one name that differ: the later one is applied over the first."""
    if manifest.name is None:
        return
    key = (manifest.group, manifest.kind, manifest.namespace, manifest.name)
    for other in manifest.others:
        if other is manifest:
            return
        same_name = key == (other.group, other.kind, other.namespace, other.name)
        if same_name and manifest.node.value != other.node.value:
            at = other.metadata["name"]
            place = f" on line {at.line} of {at.document.file}" if at.line else ""
            yield error(
                manifest.metadata["name"],
                f"there is another {manifest.kind} of this name{place}: kubectl applies one over the other",
                "give one of them another name, or take it out",
            )
            return


@rule(Manifest, "duplicate-port", "Kubernetes API server")
def duplicate_service_ports(manifest: Manifest) -> Iterator[Problem]:
    """A Service's ports differ in number and name."""
    if manifest.kind == "Service":
        yield from _duplicates(list(manifest.spec["ports"]), "port", "Service")


@rule(Pod, "duplicate-port", "Kubernetes API server; KubeRay 1.7 looks ports up by name")
def duplicate_container_ports(pod: Pod) -> Iterator[Problem]:
    """Ports of a container differ in number and name; two containers may share names, but no number: one network."""
    owners: dict[tuple[int, str], str] = {}
    for container in pod.containers:
        what = "RayCluster" if pod.role in ("head", "worker") else "Pod"
        yield from _duplicates(list(container["ports"]), "containerPort", what)
        for port in container["ports"]:
            name, number = port["name"].text, port["containerPort"].number
            if name is not None and (len(name) > 15 or not re.search("[a-z]", name) or not _DNS_1123.match(name)):
                yield error(
                    port["name"],
                    f"{name!r} is no port name: the API server refuses the Pod",
                    "use at most 15 lower-case letters, digits and hyphens",
                )
            here = str(container["name"].value)
            if number is None or owners.setdefault((number, port["protocol"].text or "TCP"), here) == here:
                continue
            yield warning(
                port["containerPort"],
                f"port {number} is the container {owners[number, port['protocol'].text or 'TCP']}'s too: containers of "
                "a Pod share one network, and only the first to come can listen",
                "give each container its own port",
            )


def _duplicates(ports: list[Node], key: str, what: str) -> Iterator[Problem]:
    numbers: set[tuple[int, str]] = set()
    names: set[str] = set()
    for port in ports:
        number, name = port[key].number, port["name"].text
        protocol = port["protocol"].text or "TCP"
        if number is not None and (number, protocol) in numbers:
            # Of a Pod's ports the API server only warns; KubeRay's CRD says in its schema that they differ.
            say, consequence = (
                (warning, "server-side apply refuses") if what == "Pod" else (error, "the API server refuses")
            )
            yield say(port[key], f"{protocol} port {number} is listed twice: {consequence} the {what}", "list it once")
        elif name is not None and name in names:
            yield error(
                port["name"], f"two ports are named {name}: the API server refuses the {what}", "give each its own name"
            )
        if number is not None:
            numbers.add((number, protocol))
        if name is not None:
            names.add(name)
