"""Kinds and versions, and names that clash or become too long with a suffix."""

from collections.abc import Iterator

from kuberay.check.manifests import Manifest, RayCluster
from kuberay.check.nodes import repeated
from kuberay.check.rules import Problem, error, rule, warning

_LONGEST = {"RayCluster": 41, "RayService": 35, "RayJob": 35, "RayCronJob": 24}
"""Longest name of a cluster with multi-host slices; KubeRay itself allows 12 characters more."""


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
