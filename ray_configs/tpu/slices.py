"""TPU slices: the chips that one replica owns, on one host or many, and their names in GKE and Ray."""

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from ray_configs.cluster.labels import ACCELERATOR, ACCELERATOR_TYPE, TOPOLOGY, TPU_POD_TYPE, TPU_TOPOLOGY
from ray_configs.tpu.generations import GENERATIONS, MachineType, TpuGeneration


class TpuSlice(BaseModel):
    """One TPU slice: `TpuSlice("v5e", "4x8")`; written `v5e:4x8` on a command line and in Serve's `args`.

    An impossible one raises an error that names the choices. v5e and v6e sell 2x4 both as one host of eight chips and
    as two hosts of four, so there the machine type is required: `TpuSlice("v5e", "2x4", "8t")`, `v5e:2x4:8t`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: str
    """A name of GENERATIONS: `v5e`."""
    topology: str
    """Chips along each axis, as GKE writes them: `2x4`, or `2x2x1` where the chips form a 3D torus."""
    machine_type: str | None = Field(None, validate_default=True)
    """`ct5lp-hightpu-8t`, or its last part, `8t`; needed only where a topology comes in two sizes of host."""

    def __init__(
        self,
        generation: str | None = None,
        topology: str | None = None,
        machine_type: str | None = None,
        **unknown: Any,
    ) -> None:
        given = {"generation": generation, "topology": topology, "machine_type": machine_type}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **unknown)

    @model_validator(mode="after")
    def _exists(self) -> "TpuSlice":
        known = GENERATIONS.get(self.generation)
        if known is None:
            raise ValueError(f"no TPU generation {self.generation!r}; choose one of {', '.join(GENERATIONS)}")
        machines = known.machines_for(self.topology)
        if not machines:
            advice = f"choose one of {_listed(known.topologies)}"
            ascending = "x".join(sorted(self.topology.split("x"), key=lambda axis: (len(axis), axis)))
            if known.machines_for(ascending):
                advice = f"write {ascending}: shorter axes come first"
            raise ValueError(f"{self.generation} has no topology {self.topology!r}; {advice}")
        if self.machine_type is None:
            if len(machines) > 1:
                choices = " or ".join(
                    f"{self}:{m.suffix} ({math.prod(_axes(self.topology)) // m.chips} x {m.name})" for m in machines
                )
                raise ValueError(f"{self.generation} {self.topology} comes in two sizes of host; write {choices}")
            machine = machines[0]
        else:
            fitting = [m for m in machines if self.machine_type in (m.name, m.suffix)]
            if not fitting:
                raise ValueError(
                    f"machine type {self.machine_type!r} does not make a {self.generation} slice of {self.topology}; "
                    f"choose {' or '.join(m.name for m in machines)}"
                )
            machine = fitting[0]
        object.__setattr__(self, "machine_type", machine.name)
        return self

    def __str__(self) -> str:
        """`v5e:4x8`, with the machine type's suffix where the topology is ambiguous."""
        short = f"{self.generation}:{self.topology}"
        ambiguous = len(self.facts.machines_for(self.topology)) > 1 and self.machine_type is not None
        return f"{short}:{self.machine.suffix}" if ambiguous else short

    @property
    def facts(self) -> TpuGeneration:
        """The generation's entry in GENERATIONS."""
        return GENERATIONS[self.generation]

    @property
    def machine(self) -> MachineType:
        """The machine type of each host."""
        return next(m for m in self.facts.machines if m.name == self.machine_type)

    @property
    def chips(self) -> int:
        return math.prod(_axes(self.topology))

    @property
    def chips_per_host(self) -> int:
        return self.machine.chips

    @property
    def hosts(self) -> int:
        """Machines of the slice: KubeRay's numOfHosts."""
        return self.chips // self.chips_per_host

    @property
    def single_host(self) -> bool:
        return self.hosts == 1

    @property
    def hbm_gib(self) -> int:
        """High-bandwidth memory of all chips together, GiB."""
        return self.chips * self.facts.hbm_gib

    @property
    def accelerator(self) -> str:
        """GKE's name for the kind of chip, as in the node label cloud.google.com/gke-tpu-accelerator."""
        return self.machine.accelerator

    @property
    def node_selectors(self) -> dict[str, str]:
        """Labels of the GKE nodes that can be a host of this slice."""
        return {
            ACCELERATOR: self.accelerator,
            TOPOLOGY: self.topology,
        }

    @property
    def ray_pod_type(self) -> str:
        """Ray's `ray.io/tpu-pod-type`, such as v5litepod-32: chips, or TensorCores where a chip has two."""
        return f"{self.facts.ray_name}-{self.chips * self.facts.cores_per_chip}"

    @property
    def ray_head_resource(self) -> str:
        """The resource that Ray gives to the slice's worker 0 only; whoever holds it has reserved the slice."""
        return f"TPU-{self.ray_pod_type}-head"

    @property
    def ray_labels(self) -> dict[str, str]:
        """Labels that Ray puts on every host of the slice. The slice's name and the worker's id differ by host."""
        return {
            ACCELERATOR_TYPE: f"TPU-{self.facts.ray_name.upper()}",
            TPU_POD_TYPE: self.ray_pod_type,
            TPU_TOPOLOGY: self.topology,
        }

    @property
    def ray_refusal(self) -> str | None:
        """Why Ray cannot place replicas on this slice (a Kubernetes Job still can run there); None: it can."""
        if self.topology not in self.facts.ray_topologies:
            return f"Ray does not know {self.generation} {self.topology}; it knows {_listed(self._ray_choices())}"
        if not self.facts.autoscales:
            return f"Ray's autoscaler does not know the node selector {self.accelerator} of {self.generation}"
        return None

    def _ray_choices(self) -> list[str]:
        return [topology for topology in self.facts.topologies if topology in self.facts.ray_topologies]


def every_slice() -> Iterator[TpuSlice]:
    """All slices of the table."""
    for generation in GENERATIONS.values():
        for topology in generation.topologies:
            for machine in generation.machines_for(topology):
                yield TpuSlice(generation.name, topology, machine.name)


def _axes(topology: str) -> list[int]:
    return [int(length) for length in topology.split("x")]


def _listed(topologies: tuple[str, ...] | list[str], most: int = 16) -> str:
    more = len(topologies) - most
    return ", ".join(topologies[:most]) + (f" and {more} larger ones, up to {topologies[-1]}" if more > 0 else "")


def _parse(value: Any) -> Any:
    """`v5e:2x4:8t` -> its parts."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if not 2 <= len(parts) <= 3:
        raise ValueError(
            f"slice {value!r} must be written GENERATION:TOPOLOGY, such as v5e:4x8, v5e:2x4:8t or v4:2x2x1"
        )
    return dict(zip(("generation", "topology", "machine_type"), parts))


SliceField = Annotated[TpuSlice, BeforeValidator(_parse), PlainSerializer(str, return_type=str)]
"""A field that takes a TpuSlice or its short form, `v5e:4x8`, and dumps as the short form."""
