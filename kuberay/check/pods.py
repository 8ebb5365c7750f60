"""A Pod template, and what it asks of a TPU: the slice that it is a host of, as far as the template says."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kuberay.check.nodes import Node, quantity
from ray_configs.labels import ACCELERATOR, TOPOLOGY, TPU
from ray_configs.tpu import GENERATIONS, MachineType, TpuGeneration, TpuSlice

if TYPE_CHECKING:
    from kuberay.check.manifests import Group, Manifest


GENERATION_OF: dict[str, TpuGeneration] = {
    machine.accelerator: generation for generation in GENERATIONS.values() for machine in generation.machines
}
"""GKE's accelerator names to generations."""

RARE_ACCELERATORS = frozenset({"tpu-v4-lite-device", "tpu-v5-lite-device", "tpu7"})
"""Accelerators that GKE knows and Podslice's table of generations leaves out: nothing is said about their sizes."""


@dataclass(frozen=True, eq=False)
class Pod:
    """A Pod template (or a Pod), wherever it was written."""

    manifest: "Manifest"
    node: Node
    role: str
    """`head` or `worker` of a RayCluster, `submitter` of a RayJob, `job`, or `workload` for all others."""
    group: "Group | None" = None
    """Of a head or worker."""

    @property
    def ray(self) -> bool:
        """Whether KubeRay makes it."""
        return self.role in ("head", "worker", "submitter")

    @property
    def spec(self) -> Node:
        return self.node["spec"]

    @cached_property
    def containers(self) -> list["Container"]:
        return [Container(self, node) for node in self.spec["containers"]]

    @cached_property
    def init_containers(self) -> list["Container"]:
        return [Container(self, node, init=True) for node in self.spec["initContainers"]]

    @property
    def accelerator(self) -> Node:
        return self.spec["nodeSelector"][ACCELERATOR]

    @property
    def topology(self) -> Node:
        return self.spec["nodeSelector"][TOPOLOGY]

    @cached_property
    def tpu_containers(self) -> list["Container"]:
        """Containers that ask for chips, by a request or a limit."""
        return [container for container in self.containers if container.asks_tpu]

    @property
    def asks_tpu(self) -> bool:
        return bool(self.tpu_containers)

    @cached_property
    def chips(self) -> int | None:
        """Chips that the Pod asks for, all containers together; None where that is not known or makes no sense."""
        counts = [quantity(container.chips) for container in self.tpu_containers]
        whole = [int(count) for count in counts if count is not None and count.is_integer()]
        return sum(whole) or None if len(whole) == len(counts) else None

    @cached_property
    def generation(self) -> TpuGeneration | None:
        return GENERATION_OF.get(self.accelerator.text or "")

    @cached_property
    def axes(self) -> tuple[int, ...] | None:
        """(4, 8) of 4x8; None where no topology is written, or something else."""
        text = self.topology.text
        return tuple(map(int, text.split("x"))) if text and re.fullmatch(r"\d{1,4}(x\d{1,4})+", text) else None

    @property
    def topology_chips(self) -> int | None:
        """Chips of the whole slice."""
        return math.prod(self.axes) if self.axes else None

    @cached_property
    def machines(self) -> tuple[MachineType, ...]:
        """Machine types that such a slice can be made of."""
        if self.generation is None or self.topology.text is None:
            return ()
        return tuple(
            m for m in self.generation.machines_for(self.topology.text) if m.accelerator == self.accelerator.text
        )

    @cached_property
    def slice(self) -> TpuSlice | None:
        """The slice that the Pod is a host of, if accelerator, topology and chips leave one."""
        fitting = [machine for machine in self.machines if machine.chips == self.chips]
        if self.generation is None or len(fitting) != 1:
            return None
        return TpuSlice(self.generation.name, str(self.topology.value), fitting[0].name)

    @property
    def misfit(self) -> bool:
        """Whether no machine makes such a slice, which is a finding of its own: nothing else can be said then."""
        return self.generation is not None and self.topology.text is not None and self.slice is None

    @cached_property
    def hosts(self) -> int:
        """Hosts of the slice, as the webhook reckons them but without its rounding; 1 where that is not known."""
        chips, total = self.chips, self.topology_chips
        return 1 if self.misfit or not chips or not total or total % chips else total // chips

    @property
    def tolerates_tpu(self) -> bool:
        """Whether the taint of TPU nodes is tolerated, by its key or with all others."""
        return any(item["key"].text in (TPU, None) for item in self.spec["tolerations"])


@dataclass(frozen=True, eq=False)
class Container:
    """A container of a Pod."""

    pod: Pod
    node: Node
    init: bool = False

    def __getitem__(self, key: str) -> Node:
        return self.node[key]

    @property
    def name(self) -> str:
        return str(self.node["name"].value)

    @cached_property
    def env(self) -> dict[str, Node]:
        """Values of its environment variables by name. Most names look like PLACEHOLDERS, so they are not `text`."""
        return {str(item["name"].value): item["value"] for item in self.node["env"] if item["name"].present}

    @property
    def ports(self) -> dict[str, Node]:
        """containerPorts by name, as the operator sees them."""
        return {port["name"].text or "": port["containerPort"] for port in self.node["ports"]}

    @property
    def chips(self) -> Node:
        """What it asks for: its request, else its limit, as the webhook counts."""
        request = self.node.at("resources", "requests", TPU)
        return request if request.present and quantity(request) != 0 else self.node.at("resources", "limits", TPU)

    @property
    def asks_tpu(self) -> bool:
        amounts = [self.node.at("resources", part, TPU) for part in ("requests", "limits")]
        return any(amount.present and quantity(amount) != 0 for amount in amounts)
