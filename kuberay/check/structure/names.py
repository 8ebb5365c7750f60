"""Names: those that clash, and those that become too long once a suffix is added to them."""

import re
from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import Cluster, Group, Manifest
from kuberay.check.nodes import Node, repeated
from kuberay.check.pods import Container, Pod
from kuberay.check.rules import Problem, error, rule, warning

_LONGEST = {"RayCluster": 41, "RayService": 35, "RayJob": 35, "RayCronJob": 24}
"""Characters of a name on slices of several hosts; KubeRay itself allows 12 more."""

_DNS_1123 = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


@rule(Manifest, "object", "Kubernetes API server")
def kind_and_version(manifest: Manifest) -> Iterator[Problem]:
    """Every object has an apiVersion and a kind."""
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


@rule(Cluster, "name-multi-host", "GKE TPU webhook: generateHeadlessServiceName; KubeRay 1.7: headless service")
def multi_host_name(cluster: Cluster) -> Iterator[Problem]:
    """The webhook keeps only the last 50 characters of `<cluster>-headless`, KubeRay all (ai-on-gke PR#972)."""
    manifest, name = cluster.manifest, cluster.manifest.name
    if name is None or not any(group.tpu and group.multi_host for group in cluster.groups):
        return
    most = _LONGEST[manifest.kind]
    if len(name) > most:
        yield error(
            manifest.metadata["name"],
            f"has {len(name)} characters: with slices of several hosts the GKE TPU webhook cuts the name of the "
            "headless Service, <cluster>-headless, to its last 50 characters and KubeRay does not, so "
            "TPU_WORKER_HOSTNAMES name hosts that do not exist and JAX hangs (ai-on-gke PR#972)",
            f"shorten it to {most} characters",
        )


@rule(Cluster, "group-name", "KubeRay 1.7: groups are told apart by name alone")
def one_name_each(cluster: Cluster) -> Iterator[Problem]:
    """Each worker group has a name of its own."""
    for name in repeated(group.node["groupName"] for group in cluster.groups):
        so = (
            "their slices get the same TPU_NAME, and reservations mix their hosts"
            if any(group.tpu for group in cluster.groups if group.name == name.text)
            else "KubeRay takes the Pods of one for those of the other, and deletes and makes them in turn"
        )
        why = f"two worker groups are named {name.text}: nobody refuses it, but {so}"
        yield error(name, why, "give each worker group its own name")


@rule(Group, "group-name", "GKE TPU webhook: Pod hostnames; KubeRay 1.7: Pod labels")
def group_name(group: Group) -> Iterator[Problem]:
    """A group's name becomes a Pod label and, on slices of several hosts, part of a hostname."""
    node, name, wide = group.node["groupName"], group.name, group.tpu and group.multi_host
    hostname = f"{name}-{max(0, (group.most or 1) - 1)}-{(group.hosts or 1) - 1}"
    if not name:
        return
    if not _DNS_1123.match(name) or len(name) > 63:
        why = (
            "the GKE TPU webhook makes Pod hostnames of it, and the API server refuses those Pods"
            if wide
            else "it becomes the Pod label ray.io/group, and KubeRay has to change it in Pod names"
        )
        instead = "use lower-case letters, digits and hyphens"
        yield (error if wide else warning)(node, f"{name!r} is no DNS label: {why}", instead)
    elif wide and len(hostname) > 63:
        why = (
            f"Pod hostnames such as {hostname} have {len(hostname)} characters: the API server refuses Pods with more "
            "than 63"
        )
        yield error(node, why, f"shorten the group's name by {len(hostname) - 63}")


@rule(Manifest, "duplicate-object", "kubectl apply")
def duplicate_objects(manifest: Manifest) -> Iterator[Problem]:
    """Two objects of one name that differ: the later one is applied over the first."""
    key = (manifest.group, manifest.kind, manifest.namespace, manifest.name)
    for other in manifest.others if manifest.name else ():
        if other is manifest:
            return
        same_name = key == (other.group, other.kind, other.namespace, other.name)
        if same_name and manifest.node.value != other.node.value:
            at = other.metadata["name"]
            place = f" on line {at.line} of {at.file}" if at.line else ""
            why = f"there is another {manifest.kind} of this name{place}: kubectl applies one over the other"
            yield error(manifest.metadata["name"], why, "give one of them another name, or take it out")
            return


@rule(Manifest, "duplicate-port", "Kubernetes API server")
def duplicate_service_ports(manifest: Manifest) -> Iterator[Problem]:
    """A Service's ports differ in number and name."""
    if manifest.kind == "Service":
        yield from _duplicates(manifest.spec["ports"], "port", "Service")


@rule(Container, "duplicate-port", "Kubernetes API server; KubeRay 1.7 looks ports up by name")
def duplicate_container_ports(container: Container) -> Iterator[Problem]:
    """Ports of a container differ in number and name."""
    if container.init:
        return
    yield from _duplicates(container["ports"], "containerPort", "RayCluster" if container.pod.group else "Pod")
    for name in (port["name"] for port in container["ports"]):
        text = name.text
        if text is not None and (len(text) > 15 or not re.search("[a-z]", text) or not _DNS_1123.match(text)):
            why = f"{text!r} is no port name: the API server refuses the Pod"
            yield error(name, why, "use at most 15 lower-case letters, digits and hyphens")


@rule(Pod, "duplicate-port", "Linux: containers of a Pod share one network")
def shared_ports(pod: Pod) -> Iterator[Problem]:
    """Two containers may share the names of ports, but no number."""
    owners: dict[tuple[int, str], str] = {}
    for container in pod.containers:
        for port in container["ports"]:
            key = (port["containerPort"].number or 0, port["protocol"].text or "TCP")
            if key[0] and owners.setdefault(key, container.name) != container.name:
                why = (
                    f"port {key[0]} is the container {owners[key]}'s too: containers of a Pod share one network, and "
                    "only the first to come can listen"
                )
                yield warning(port["containerPort"], why, "give each container its own port")


def _duplicates(ports: Node, key: str, what: str) -> Iterator[Problem]:
    seen: set[Any] = set()
    for port in ports:
        number, name, protocol = port[key].number, port["name"].text, port["protocol"].text or "TCP"
        if number is not None and (number, protocol) in seen:
            # Of a Pod's ports the API server only warns; KubeRay's CRD says in its schema that they differ.
            say, who = (warning, "server-side apply") if what == "Pod" else (error, "the API server")
            yield say(port[key], f"{protocol} port {number} is listed twice: {who} refuses the {what}", "list it once")
        elif name is not None and name in seen:
            why = f"two ports are named {name}: the API server refuses the {what}"
            yield error(port["name"], why, "give each its own name")
        seen |= {(number, protocol), name}
