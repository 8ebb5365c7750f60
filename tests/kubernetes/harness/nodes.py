"""The GKE Nodes that a manifest's Pods need: one node pool for each slice, and one ordinary machine."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
TPU = "google.com/tpu"
POOL = "cloud.google.com/gke-nodepool"
MACHINE = {"cpu": "240", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "pods": "110"}
"""More than any Pod requests; Pods really share this machine."""


def nodes_for(objects: Iterable[Object], spare_slices: int = 0) -> list[dict[str, Any]]:
    """Nodes for the objects at their maximum size. `spare_slices`: extra pools for each kind of slice."""
    objects = list(objects)
    nodes = [node(f"{objects[0]['metadata']['name']}-cpu-0", {POOL: "default-pool"})]
    for name, count, hosts, template in _slices(objects):
        spec = template["spec"]
        limits = spec["containers"][0].get("resources", {}).get("limits", {})
        if TPU not in limits and not spec.get("nodeSelector"):
            continue  # it runs on the ordinary machine
        chips = {TPU: limits[TPU]} if TPU in limits else {}
        taints = [
            {"key": one["key"], "value": one.get("value", "present"), "effect": one.get("effect", "NoSchedule")}
            for one in spec.get("tolerations", ())
        ]
        if chips and TPU not in {taint["key"] for taint in taints}:
            taints.append({"key": TPU, "value": "present", "effect": "NoSchedule"})
        for replica in range(count + spare_slices):
            pool = f"{name}-{replica}"
            labels = dict(spec.get("nodeSelector", {})) | {POOL: pool}
            nodes += (node(f"{pool}-{host}", labels, taints, **chips) for host in range(hosts))
    return nodes


def node(
    name: str, labels: Mapping[str, str] | None = None, taints: Iterable[Object] = (), **amounts: str
) -> dict[str, Any]:
    """A Node object, as a kubelet registers it."""
    capacity = MACHINE | amounts
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})},
        "spec": {"taints": list(taints)},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _slices(objects: Iterable[Object]) -> Iterator[tuple[str, int, int, Object]]:
    """(name, most replicas, hosts of each, Pod template) of everything that needs Nodes of its own."""
    for item in objects:
        spec, name = item.get("spec", {}), item["metadata"]["name"]
        if item["kind"] == "Job":
            yield name, 1, spec.get("parallelism", 1), spec["template"]
        cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or {}
        for group in cluster.get("workerGroupSpecs", ()):
            most = max(group.get("replicas", 0), group.get("maxReplicas", 0))
            yield f"{name}-{group['groupName']}", most, group.get("numOfHosts", 1), group["template"]
