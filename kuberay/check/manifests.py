"""What rules examine: an object, the RayCluster in it, its worker groups, and its Pods and Jobs."""

from collections.abc import Iterable
from typing import Any

from kuberay.check.nodes import Document, Node, version
from kuberay.check.pods import Container, Pod
from kuberay.check.reading import file_of, objects_in

RAY_KINDS = ("RayCluster", "RayService", "RayJob", "RayCronJob")


class Manifest:
    """One Kubernetes object."""

    refused = "the API server refuses the object"

    def __init__(self, document: Document, others: list["Manifest"]) -> None:
        self.others = others
        """All objects that are checked together, including this one."""
        self.node = document.node
        self.metadata, self.spec = self.node["metadata"], self.node["spec"]
        self.name, self.namespace = self.metadata["name"].text, self.metadata["namespace"].text or "default"
        self.kind = self.node["kind"].text or ""
        self.group = (self.node["apiVersion"].text or "").rpartition("/")[0]
        """`ray.io` of ray.io/v1; empty for core kinds."""
        self.schema = f"{self.group}/{self.kind}"
        """Key of its schema, such as `ray.io/RayService`."""
        self.ray = self.group == "ray.io" and self.kind in RAY_KINDS
        jobs = {"RayJob": self.spec, "RayCronJob": self.spec["jobTemplate"]}
        self.ray_job = jobs.get(self.kind) if self.ray else None
        """The spec of a RayJob, or of the RayJobs that a RayCronJob creates; None for other kinds."""


class RayCluster:
    """The RayCluster that an object is or creates."""

    def __init__(self, manifest: Manifest, node: Node) -> None:
        self.manifest, self.node = manifest, node
        self.service = manifest.kind == "RayService"
        self.upgrade = manifest.spec["upgradeStrategy"]
        self.ray_version = version(node["rayVersion"].text)
        self.autoscaling = node["enableInTreeAutoscaling"].value is True
        self.head = Group(self, node["headGroupSpec"], is_head=True)
        self.groups = [Group(self, each) for each in node["workerGroupSpecs"]]
        self.all_groups = [self.head, *self.groups]


class Group:
    """A worker group, where each replica is `numOfHosts` Pods; or the head, which is one Pod."""

    def __init__(self, cluster: RayCluster, node: Node, is_head: bool = False) -> None:
        self.cluster, self.node, self.is_head = cluster, node, is_head
        self.name = node["groupName"].text or ""
        self.title = "the head" if is_head else f"group {self.name}"
        self.params = node["rayStartParams"]
        self.hosts = node["numOfHosts"].number if node["numOfHosts"].present else 1
        """numOfHosts, 1 by default; None if it is a placeholder or not a number."""
        self.multi_host = (self.hosts or 1) > 1
        self.least = node["minReplicas"].number or 0
        self.most = node["maxReplicas"].number
        """maxReplicas; None if it is missing, which means no bound."""
        self.pod = Pod(cluster.manifest, node["template"], "head" if is_head else "worker", self)
        self.tpu = not is_head and self.pod.asks_tpu
        self.ray: Container | None = self.pod.containers[0] if self.pod.containers else None
        """The first container, which runs Ray."""
        self.env = self.ray.env if self.ray else {}
        """Environment of Ray's container."""


class BatchJob:
    """A batch Job, alone or in a CronJob or JobSet."""

    def __init__(self, manifest: Manifest, node: Node, in_job_set: bool = False) -> None:
        self.manifest, self.node, self.spec, self.in_job_set = manifest, node, node["spec"], in_job_set
        self.pod = Pod(manifest, self.spec["template"], "job")
        self.hosts = self.pod.hosts


def manifests_of(objects: Iterable[Any]) -> list[Manifest]:
    """The objects, with every `kind: List` expanded."""
    others: list[Manifest] = []
    for value in objects:
        for item in objects_in(value):
            others.append(Manifest(Document(item, _title(item), file_of(value)), others))
    return others


def _title(value: Any) -> str:
    if not isinstance(value, dict):
        return "document"
    metadata = value.get("metadata")
    name = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
    kind = value.get("kind")
    return f"{kind if isinstance(kind, str) else 'object'}/{name if isinstance(name, str) else '(no name)'}"
