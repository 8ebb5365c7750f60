"""Kinds and versions, names that clash or become too long with a suffix, and placeholders still to be filled in."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Group, Manifest, Pod, RayCluster
from kuberay.check.nodes import Node, repeated
from kuberay.check.rules import Problem, error, note, rule, warning

_LONGEST = {"RayCluster": 41, "RayService": 35, "RayJob": 35, "RayCronJob": 24}
"""Longest name of a cluster with multi-host slices; KubeRay itself allows 12 characters more."""
_FREE_TEXT = frozenset(
    {"args", "command", "env", "annotations", "data", "stringData", "serveConfigV2", "entrypoint", "runtimeEnvYAML"}
    | {"capabilities"}
)
"""Fields whose text may contain $X or UPPER_CASE that are not placeholders."""
_GROUPS = frozenset({"", "apps", "batch", "ray.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kueue.x-k8s.io"})
"""API groups in which text that looks like a placeholder is one."""


@rule(Manifest, "object", "Kubernetes API server")
def kind_and_version(manifest: Manifest) -> Iterator[Problem]:
    """Every object has an apiVersion and a kind; KubeRay's is ray.io/v1."""
    version, kind = manifest.node["apiVersion"], manifest.node["kind"]
    if not isinstance(version.value, str) or not isinstance(kind.value, str):
        why = "has no apiVersion or no kind, so it is not a Kubernetes object: kubectl refuses it"
        yield error(version, why, "write apiVersion and kind, such as ray.io/v1 and RayService")
    elif version.value == "ray.io/v1alpha1":
        why = "v1alpha1 is older than numOfHosts, labels, authOptions and others: the API server drops those fields"
        yield warning(version, why, "write apiVersion: ray.io/v1")


@rule(Manifest, "duplicate-object", "kubectl apply")
def duplicate_object(manifest: Manifest) -> Iterator[Problem]:
    """Objects of one kind and name are identical; otherwise the later one overwrites the first."""
    earlier = manifest.others[: manifest.others.index(manifest)]
    same_name = [other for other in earlier if other.schema == manifest.schema and other.name == manifest.name]
    same_place = [other for other in same_name if manifest.name and other.namespace == manifest.namespace]
    if any(other.node.value != manifest.node.value for other in same_place):
        why = f"there is another {manifest.kind} of this name: kubectl overwrites one with the other"
        yield error(manifest.metadata["name"], why, "rename or remove one of them")


@rule(RayCluster, "name-multi-host", "GKE TPU webhook: generateHeadlessServiceName; KubeRay 1.7: headless service")
def multi_host_name(cluster: RayCluster) -> Iterator[Problem]:
    """`<cluster>-headless` has at most 50 characters: the webhook drops more, KubeRay does not (ai-on-gke PR#972)."""
    manifest, name = cluster.manifest, cluster.manifest.name or ""
    most = _LONGEST[manifest.kind]
    if len(name) > most and any(group.tpu and group.multi_host for group in cluster.groups):
        why = (
            f"has {len(name)} characters: the GKE TPU webhook cuts the name of the headless Service, "
            "<cluster>-headless, to its last 50, and KubeRay does not, so TPU_WORKER_HOSTNAMES names hosts that do not "
            "exist and JAX hangs (ai-on-gke PR#972)"
        )
        yield error(manifest.metadata["name"], why, f"shorten it to {most} characters")


@rule(RayCluster, "group-name", "KubeRay 1.7: groups are identified by name alone")
def one_name_each(cluster: RayCluster) -> Iterator[Problem]:
    """Worker groups have different names; otherwise a reservation mixes hosts of slices with the same TPU_NAME."""
    for name in repeated(group.node["groupName"] for group in cluster.groups):
        why = f"two worker groups are named {name.text}: KubeRay mixes up their Pods, and slices get the same TPU_NAME"
        yield error(name, why, "give each worker group its own name")


@rule(Group, "group-name", "GKE TPU webhook: Pod hostnames; KubeRay 1.7: Pod labels")
def group_name(group: Group) -> Iterator[Problem]:
    """A group's name becomes a Pod label and, on slices of several hosts, part of a hostname."""
    node, name, wide = group.node["groupName"], group.name, group.tpu and group.multi_host
    hostname = f"{name}-{max(0, (group.most or 1) - 1)}-{(group.hosts or 1) - 1}"
    if name and not (re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 63):
        hostnames = "the GKE TPU webhook makes Pod hostnames of it, and the API server refuses those Pods"
        why = hostnames if wide else "KubeRay has to change it in the names of Pods"
        yield (error if wide else warning)(
            node, f"{name!r} is no DNS label: {why}", "use lower-case letters, digits and hyphens"
        )
    elif name and wide and len(hostname) > 63:
        why = f"Pod hostnames such as {hostname} have {len(hostname)} characters: the API server refuses more than 63"
        yield error(node, why, f"shorten the group's name by {len(hostname) - 63}")


@rule(Pod, "duplicate-port", "Linux: containers of a Pod share one network")
def shared_ports(pod: Pod) -> Iterator[Problem]:
    """Containers of a Pod may share the names of ports, but no number: the first to come listens."""
    owners: dict[tuple[int, str], str] = {}
    for container in pod.containers:
        for port in container["ports"]:
            key = (port["containerPort"].number or 0, port["protocol"].text or "TCP")
            if key[0] and owners.setdefault(key, container.name) != container.name:
                why = f"port {key[0]} is the container {owners[key]}'s too, and only the first to come can listen"
                yield warning(port["containerPort"], why, "give each container its own port")


@rule(Manifest, "placeholder", "the author of the manifest")
def placeholders(manifest: Manifest) -> Iterator[Problem]:
    """Reports in one note all values that a shell, a template or a reader has to fill in."""
    if not manifest.kind or manifest.group not in _GROUPS:
        return
    found = list(_placeholders(manifest.node))
    if found:
        shown = list(dict.fromkeys(_shown(node) for node in found))
        are = "is" if len(shown) == 1 else "are"
        why = f"{', '.join(shown)} {are} still to be filled in; nothing that depends on it was checked"
        yield note(found[0], why, "fill in the values and check again")


def _placeholders(node: Node) -> Iterator[Node]:
    if node.placeholder:
        yield node
        return
    for key, child in node.fields.items():
        if key not in _FREE_TEXT:
            yield from _placeholders(child)
    for child in node:
        yield from _placeholders(child)


def _shown(node: Node) -> str:
    return node.value if isinstance(node.value, str) else f"the template in {node.path[-1]}"
