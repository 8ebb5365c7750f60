"""Pods of a RayCluster: Ray's object store in memory, whose rights they have, and how they are stored."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node, quantity
from kuberay.check.rules import Problem, note, rule, warning

_SHARE = 0.29
"""Of a container's memory that Ray takes for its object store: 0.3 of what is left when it starts."""
_DISK = 10e9
"""Ray makes its store no larger than /dev/shm, but for stores below this size."""


@rule(Group, "object-store", "Ray 2.60: resolve_object_store_memory")
def object_store(group: Group) -> Iterator[Problem]:
    """/dev/shm holds Ray's object store, or Ray puts it on disk."""
    if group.ray is None or group.params["plasma-directory"].present:
        return
    mounts = [mount for mount in group.ray["volumeMounts"] if mount["mountPath"].text in ("/dev/shm", "/dev/shm/")]
    mounted = {mount["name"].value for mount in mounts}
    memory = quantity(group.ray["resources"]["limits"]["memory"])
    asked = group.params["object-store-memory"].text or ""
    for limit in (each["emptyDir"]["sizeLimit"] for each in group.pod.spec["volumes"] if each["name"].value in mounted):
        if (size := quantity(limit)) is None:
            continue
        store, how = min(_SHARE * (memory or 0), max(_DISK, 0.95 * size)), "0.3 of the container's memory"
        if asked.isdigit():
            store, how = float(asked), "object-store-memory"
        if store > size:
            why = f"is less than Ray's object store, {store / 1e9:.2g} GB ({how}): Ray puts it into /tmp, on disk"
            instead = f"write {int(1.2 * store / 1e6)}M or more, or a smaller object-store-memory in rayStartParams"
            yield warning(limit, why, instead)


@rule(Group, "shared-rights", "KubeRay 1.7: BuildRole, BuildRoleBinding of the autoscaler")
def rights(group: Group) -> Iterator[Problem]:
    """The autoscaler's right to change Pods and RayClusters is the head's account's, and not for workers."""
    account, heads = (each.pod.spec["serviceAccountName"] for each in (group, group.cluster.head))
    if group.cluster.autoscaling and not group.is_head and account.text and account.text == heads.text:
        why = (
            f"is the head's account too, to which KubeRay gives the autoscaler's rights: programs of {group.name} may "
            "delete Pods and change RayClusters of the namespace"
        )
        yield note(account, why, "give the head a service account of its own")


@rule(Cluster, "write-back", "KubeRay 1.7: the operator writes objects back to add its finalizer")
def write_back(cluster: Cluster) -> Iterator[Problem]:
    """A worker group reads as the operator writes it, or a second server-side apply of the same file is refused."""
    redis = cluster.manifest.kind == "RayCluster" and cluster.node["gcsFaultToleranceOptions"].present
    if not redis and cluster.manifest.kind not in ("RayService", "RayJob"):
        return
    for node, instead in (each for group in cluster.groups for each in _spelt_otherwise(group)):
        why = (
            "the operator writes worker groups back when it adds its finalizer, and this otherwise: it then owns "
            "their list, and kubectl apply --server-side refuses the next apply of this file with a conflict"
        )
        yield note(node, why, f"write {instead}, as the operator does; or apply client-side")
        return


def _spelt_otherwise(group: Group) -> Iterator[tuple[Node, str]]:
    """What the operator's copy of a group has differently, as Kubernetes' Go types print it."""
    for node in (group.node["scaleStrategy"], group.pod.node["metadata"]):
        if not node.present:
            yield node, f"{node.path[-1]}: {{}}"
    boxes = [*group.pod.init_containers, *group.pod.containers]
    for amount in (each for box in boxes for part in box["resources"].fields.values() for each in part.fields.values()):
        if isinstance(amount.value, int | float):
            yield amount, f'"{amount.value}", in quotes'
        elif amount.text is not None and not _canonical(amount.text):
            yield amount, "a whole number of the largest unit that leaves one, such as 500m or 2Gi"


def _canonical(amount: str) -> bool:
    match = re.fullmatch(r"(\d+)([mkMGTPE]|[KMGTPE]i)?", amount)
    if match is None:
        return False
    step = 1024 if (match[2] or "").endswith("i") else 1000
    return int(match[1]) % step != 0 or int(match[1]) == 0 or match[2] in ("E", "Ei")
