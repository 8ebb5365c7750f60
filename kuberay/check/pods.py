"""Pod templates, and the TPU slice that a Pod is a host of, as far as its template says."""

import math
import re
from typing import TYPE_CHECKING

from kuberay.check.nodes import Node, quantity
from ray_configs.labels import ACCELERATOR, TOPOLOGY, TPU
from ray_configs.tpu import GENERATIONS, MachineType, TpuGeneration, TpuSlice

if TYPE_CHECKING:
    from kuberay.check.manifests import Group, Manifest


GENERATION_OF: dict[str, TpuGeneration] = {
    machine.accelerator: generation for generation in GENERATIONS.values() for machine in generation.machines
}
"""Generations by GKE's accelerator names."""

RARE_ACCELERATORS = frozenset({"tpu-v4-lite-device", "tpu-v5-lite-device", "tpu7"})
"""Accelerators of GKE that are not in Podslice's table of generations: their sizes are not checked."""


class Pod:
    """A Pod template, or a Pod.

    role: `head` or `worker` of a RayCluster, `submitter` of a RayJob, `job`, or `workload` for anything else.
    group: the group of a head or worker.
    """

    def __init__(self, manifest: "Manifest", node: Node, role: str, group: "Group | None" = None) -> None:
        self.manifest, self.node, self.role, self.group = manifest, node, role, group
        self.ray = role in ("head", "worker", "submitter")
        """Whether KubeRay makes it."""
        self.spec = node["spec"]
        self.containers = [Container(self, each) for each in self.spec["containers"]]
        self.init_containers = [Container(self, each, init=True) for each in self.spec["initContainers"]]
        self.tpu_containers = [container for container in self.containers if container.asks_tpu]
        """Containers that request chips or have a limit on them."""
        self.asks_tpu = bool(self.tpu_containers)
        self.tolerates_tpu = any(item["key"].text in (TPU, None) for item in self.spec["tolerations"])
        """Whether it tolerates the taint of TPU nodes, by key or because it tolerates every taint."""
        self.accelerator, self.topology = self.spec["nodeSelector"][ACCELERATOR], self.spec["nodeSelector"][TOPOLOGY]
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
