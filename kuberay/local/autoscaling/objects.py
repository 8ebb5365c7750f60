"""The RayCluster and its Pods as files: what Kubernetes' API shows to Ray's autoscaler.

Each file has one writer, and appears at once: the run writes the Pods, and the autoscaler's process the RayCluster.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class LocalPod(NamedTuple):
    """A host, as the autoscaler sees it."""

    name: str
    group: str
    kind: str
    """`head` or `worker`."""
    up: bool


class WantedSlices(NamedTuple):
    """What the autoscaler asks of KubeRay."""

    replicas: dict[str, int]
    """Number of slices of each group."""
    unwanted: frozenset[str]
    """Hosts that go; with each its whole slice."""


class ObjectFiles:
    def __init__(self, folder: Path, ray_cluster: Mapping[str, Any]):
        """Write them into a new folder."""
        folder.mkdir()
        self.ray_cluster, self.pods = folder / "raycluster.json", folder / "pods.json"
        _write(self.ray_cluster, ray_cluster)
        self.show([])

    def show(self, pods: Sequence[LocalPod]) -> None:
        """The Pods that are there, without those that end."""
        items = [
            {
                "metadata": {"name": pod.name, "labels": {"ray.io/node-type": pod.kind, "ray.io/group": pod.group}},
                "status": {"containerStatuses": [{"state": {"running": {}}}] if pod.up else []},
            }
            for pod in pods
        ]
        _write(self.pods, {"metadata": {"resourceVersion": "0"}, "items": items})

    def wanted(self) -> WantedSlices:
        """As KubeRay reads the RayCluster."""
        groups = json.loads(self.ray_cluster.read_text())["spec"]["workerGroupSpecs"]
        named = [group.get("scaleStrategy", {}).get("workersToDelete", ()) for group in groups]
        return WantedSlices(
            {group["groupName"]: max(group["replicas"], group["minReplicas"]) for group in groups},
            frozenset().union(*named),
        )


def _write(file: Path, content: Any) -> None:
    written = file.with_suffix(".new")
    written.write_text(json.dumps(content))
    written.rename(file)
