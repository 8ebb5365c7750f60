"""What rules look at: an object, the Ray cluster in it, the worker groups of that, the Pods and Jobs that follow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from kuberay.check.nodes import Document, Node, version
from kuberay.check.pods import Container, Pod
from kuberay.check.reading import file_of, objects_in

RAY_KINDS = ("RayCluster", "RayService", "RayJob", "RayCronJob")


@dataclass(frozen=True, eq=False)
class Manifest:
    """One Kubernetes object."""

    document: Document
    others: list["Manifest"] = field(default_factory=list)
    """All objects that are checked together, this one too."""

    refused: ClassVar = "the API server refuses the object"

    @property
    def node(self) -> Node:
        return self.document.node

    @cached_property
    def kind(self) -> str:
        return self.node["kind"].text or ""

    @cached_property
    def group(self) -> str:
        """`ray.io` of ray.io/v1, empty for core kinds."""
        api_version = self.node["apiVersion"].text or ""
        return api_version.rpartition("/")[0]

    @property
    def schema(self) -> str:
        """`ray.io/RayService`, by which its schema is found."""
        return f"{self.group}/{self.kind}"

    @property
    def ray(self) -> bool:
        return self.kind in RAY_KINDS and self.group == "ray.io"

    @property
    def ray_job(self) -> Node | None:
        """The spec of a RayJob, or of those that a RayCronJob makes; None for other kinds."""
        spec = {"RayJob": self.spec, "RayCronJob": self.spec["jobTemplate"]}.get(self.kind)
        return spec if self.ray else None

    @property
    def metadata(self) -> Node:
        return self.node["metadata"]

    @property
    def spec(self) -> Node:
        return self.node["spec"]

    @property
    def name(self) -> str | None:
        return self.metadata["name"].text

    @property
    def namespace(self) -> str:
        return self.metadata["namespace"].text or "default"


@dataclass(frozen=True, eq=False)
class Cluster:
    """The RayCluster that an object is or makes."""

    manifest: Manifest
    node: Node

    @cached_property
    def head(self) -> "Group":
        return Group(self, self.node["headGroupSpec"], is_head=True)

    @cached_property
    def groups(self) -> list["Group"]:
        return [Group(self, node) for node in self.node["workerGroupSpecs"]]

    @property
    def all_groups(self) -> list["Group"]:
        """The head, then the worker groups."""
        return [self.head, *self.groups]

    @cached_property
    def ray_version(self) -> tuple[int, ...] | None:
        return version(self.node["rayVersion"].text)

    @property
    def autoscaling(self) -> bool:
        return self.node["enableInTreeAutoscaling"].true

    @property
    def service(self) -> bool:
        """Whether it is a RayService's."""
        return self.manifest.kind == "RayService"

    @property
    def upgrade(self) -> Node:
        """upgradeStrategy of the RayService."""
        return self.manifest.spec["upgradeStrategy"]


@dataclass(frozen=True, eq=False)
class Group:
    """A worker group, each replica of which is `numOfHosts` Pods; or the head, which is one Pod."""

    cluster: Cluster
    node: Node
    is_head: bool = False

    @property
    def name(self) -> str:
        return self.node["groupName"].text or ""

    @property
    def title(self) -> str:
        return "the head" if self.is_head else f"group {self.name}"

    @property
    def params(self) -> Node:
        return self.node["rayStartParams"]

    @property
    def hosts(self) -> int | None:
        """numOfHosts, 1 where it is left out; None where it is a placeholder or no number."""
        return self.node["numOfHosts"].number if self.node["numOfHosts"].present else 1

    @cached_property
    def pod(self) -> Pod:
        return Pod(self.cluster.manifest, self.node["template"], "head" if self.is_head else "worker", self)

    @property
    def ray(self) -> Container | None:
        """The container that runs Ray, which is the first."""
        return self.pod.containers[0] if self.pod.containers else None

    @property
    def env(self) -> dict[str, Node]:
        """Environment of Ray's container."""
        return self.ray.env if self.ray else {}

    @property
    def tpu(self) -> bool:
        return not self.is_head and self.pod.asks_tpu

    @property
    def multi_host(self) -> bool:
        return (self.hosts or 1) > 1

    @property
    def least(self) -> int:
        return self.node["minReplicas"].number or 0

    @property
    def most(self) -> int | None:
        """maxReplicas; None where it is left out, which means no bound."""
        return self.node["maxReplicas"].number


@dataclass(frozen=True, eq=False)
class Job:
    """A batch Job, alone or in a CronJob or JobSet."""

    manifest: Manifest
    node: Node
    in_job_set: bool = False

    @property
    def spec(self) -> Node:
        return self.node["spec"]

    @cached_property
    def pod(self) -> Pod:
        return Pod(self.manifest, self.spec["template"], "job")

    @property
    def hosts(self) -> int:
        return self.pod.hosts


def manifests_of(objects: Iterable[Any]) -> list[Manifest]:
    """The objects, those inside of `kind: List` one by one."""
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
