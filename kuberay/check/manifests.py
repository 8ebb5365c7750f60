"""What rules examine: an object, the RayCluster in it, its worker groups, its Jobs, and its Pods with their containers.

A Pod template says as much as it can of the TPU slice that its Pods are hosts of.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from kuberay.check.nodes import Document, Node, quantity, version
from kuberay.check.reading import file_of, objects_in
from ray_configs.cluster.labels import ACCELERATOR, DYNAMIC_SLICE_TOPOLOGY, SPOT, TOPOLOGY, TPU
from ray_configs.tpu import GENERATIONS, MachineType, TpuGeneration, TpuSlice

RAY_KINDS = ("RayCluster", "RayService", "RayJob", "RayCronJob")
GENERATION_OF: dict[str, TpuGeneration] = {
    machine.accelerator: generation for generation in GENERATIONS.values() for machine in generation.machines
}
"""Generations by GKE's accelerator names."""

RARE_ACCELERATORS = frozenset({"tpu-v4-lite-device", "tpu-v5-lite-device", "tpu7"})
"""Accelerators of GKE that are not in Podslice's table of generations: their sizes are not checked."""


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
        self.pathways = any("/pathways/" in f"/{box['image'].value}" for box in self.pod.containers) or any(
            str(argument.value).startswith("--resource_manager_address")
            for box in self.pod.containers
            for argument in box["args"]
        )
        """Whether its Pods are Pathways workers, each of which may restart alone: one controller runs the program."""


class Pod:
    """A Pod template, or a Pod.

    role: `head` or `worker` of a RayCluster, `submitter` of a RayJob, `job`, or `workload` for anything else.
    group: the group of a head or worker.
    """

    def __init__(self, manifest: Manifest, node: Node, role: str, group: "Group | None" = None) -> None:
        self.manifest, self.node, self.role, self.group = manifest, node, role, group
        self.ray = role in ("head", "worker", "submitter")
        """Whether KubeRay makes it."""
        self.spec = node["spec"]
        self.containers = [Container(self, each) for each in self.spec["containers"]]
        self.init_containers = [Container(self, each, init=True) for each in self.spec["initContainers"]]
        self.tpu_containers = [container for container in self.containers if container.asks_tpu]
        """Containers that request chips or have a limit on them."""
        self.asks_tpu = bool(self.tpu_containers)
        self.spot = self.spec["nodeSelector"][SPOT].value not in (None, "false", False)
        """Whether it selects Spot machines."""
        self.tolerates_tpu = any(item["key"].text in (TPU, None) for item in self.spec["tolerations"])
        """Whether it tolerates the taint of TPU nodes, by key or because it tolerates every taint."""
        self.formed = node["metadata"]["annotations"][DYNAMIC_SLICE_TOPOLOGY]
        """Topology of a slice that is formed within a larger one when the Pods are scheduled, if there is one."""
        selector = self.spec["nodeSelector"]
        self.accelerator, self.topology = selector[ACCELERATOR], selector[TOPOLOGY]
        if self.formed.present:
            self.topology = self.formed
        text = self.topology.text or ""
        self.axes = tuple(map(int, text.split("x"))) if re.fullmatch(r"\d{1,4}(x\d{1,4})+", text) else None
        """(4, 8) for 4x8; None if there is no valid topology."""
        self.topology_chips = math.prod(self.axes) if self.axes else None
        """Chips of the whole slice."""
        self.chips = self._chips()
        """Chips that all containers request together; None if unknown or not a whole number."""
        self.generation = GENERATION_OF.get(self.accelerator.text or "")
        self.machines = self._machines()
        """Machine types that such a slice can consist of."""
        self.slice = self._slice()
        """The slice that the Pod is a host of, if accelerator, topology and chips determine one."""
        self.misfit = bool(self.generation and text and self.slice is None)
        """Whether no machine type fits the slice. Other rules report that; rules that need the slice skip the Pod."""
        self.hosts = 1
        """Hosts of the slice, as the webhook computes them but without rounding; 1 if unknown."""
        if not self.misfit and self.chips and self.topology_chips and self.topology_chips % self.chips == 0:
            self.hosts = self.topology_chips // self.chips

    def _chips(self) -> int | None:
        counts = [quantity(container.chips) for container in self.tpu_containers]
        whole = [int(count) for count in counts if count is not None and count.is_integer()]
        return sum(whole) or None if len(whole) == len(counts) else None

    def _machines(self) -> list[MachineType]:
        name, topology = self.accelerator.text, self.topology.text
        machines = self.generation.machines_for(topology) if self.generation and topology else ()
        return [machine for machine in machines if machine.accelerator == name]

    def _slice(self) -> TpuSlice | None:
        fitting = [machine for machine in self.machines if machine.chips == self.chips]
        if self.generation is None or len(fitting) != 1:
            return None
        return TpuSlice(self.generation.name, str(self.topology.value), fitting[0].name)


class Container:
    """A container of a Pod."""

    def __init__(self, pod: Pod, node: Node, init: bool = False) -> None:
        self.pod, self.node, self.init = pod, node, init
        self.name = str(node["name"].value)
        self.env = {str(item["name"].value): item["value"] for item in node["env"] if item["name"].present}
        """Values of environment variables by name. Names are not read as `text`: most look like PLACEHOLDERS."""
        self.ports = {port["name"].text or "": port["containerPort"] for port in node["ports"]}
        """containerPorts by name, as the operator indexes them."""
        requested, limit = (node["resources"][part][TPU] for part in ("requests", "limits"))
        asked = [amount for amount in (requested, limit) if amount.present and quantity(amount) != 0]
        self.chips = requested if requested in asked else limit
        """Requested chips: the request, else the limit, as the webhook counts them."""
        self.asks_tpu = bool(asked)

    def __getitem__(self, key: str) -> Node:
        return self.node[key]


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
