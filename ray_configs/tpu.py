"""TPU slices: the chips that one replica owns, on one host or many, and their names in GKE and Ray.

One table, GENERATIONS, holds the facts; TpuSlice derives the rest. Sources: GKE's and Cloud TPU's tables of machine
types, topologies and peak figures; Ray 2.60's list of topologies that its slice reservation accepts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from ray_configs.labels import ACCELERATOR, ACCELERATOR_TYPE, TOPOLOGY, TPU_POD_TYPE, TPU_TOPOLOGY


@dataclass(frozen=True)
class MachineType:
    """A Compute Engine machine type: one host of a slice."""

    name: str
    accelerator: str
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    chips: int
    vcpus: int
    memory_gb: int
    single_host: str | None
    """The topology that one such host is by itself; None: only sold as a part of a larger slice."""
    dynamic_workload_scheduler: bool = True
    """Whether flex-start and queued provisioning sell it."""

    @property
    def suffix(self) -> str:
        """The part that tells machine types of a generation apart: `8t` of ct5lp-hightpu-8t."""
        return self.name.rsplit("-", 1)[-1]


@dataclass(frozen=True)
class TpuGeneration:
    """A TPU generation as GKE sells it. Peak figures are one chip's, as Google publishes them."""

    name: str
    ray_name: str
    """Ray's name of it, the first part of its pod type."""
    machines: tuple[MachineType, ...]
    multi_host: tuple[str, ...]
    """Topologies of several hosts, with four chips a host."""
    hbm_gib: int
    hbm_gb_per_s: int
    bf16_tflops: int
    int8_tops: int | None
    """None where no figure is published: 7x's is for fp8, at 4614."""
    ici_gb_per_s: int
    """What a chip can send to its neighbours over all its links together: half of the bidirectional bandwidth that
    Cloud TPU's pages of v5e, v5p, v6e and 7x give; v3 and v4 from the links in "TPU v4: An Optically Reconfigurable
    Supercomputer" (ISCA 2023), 4 of 70 GB/s and 6 of 50."""
    clock_ghz: float | None
    """Of a TensorCore, which turns the compiler's cycles into time; None where none is published."""
    cores_per_chip: int
    """TensorCores; Ray counts them in its pod types (v4-16 is 8 chips)."""
    ray_topologies: frozenset[str]
    """Topologies that Ray's slice reservation accepts."""
    autoscales: bool = True
    """Whether Ray's autoscaler knows the node selector."""
    workload_policy: bool = False
    """Node pools of several hosts are placed by a workload policy, not by --tpu-topology."""

    @property
    def multi_host_machine(self) -> MachineType:
        """The last machine of four chips: single hosts and slices of several share it, but for v3."""
        return [machine for machine in self.machines if machine.chips == 4][-1]

    def machines_for(self, topology: str) -> tuple[MachineType, ...]:
        """Machine types that make up such a slice, the usual one of each size first; none: no such slice."""
        alone = tuple(machine for machine in self.machines if machine.single_host == topology)
        return alone + ((self.multi_host_machine,) if topology in self.multi_host else ())

    @property
    def topologies(self) -> tuple[str, ...]:
        alone = (machine.single_host for machine in self.machines if machine.single_host)
        return tuple(dict.fromkeys([*alone, *self.multi_host]))


def _cubes(largest: int) -> tuple[str, ...]:
    """3D topologies of several hosts: a few below one cube of 4x4x4 chips, then boxes of at most `largest` cubes."""
    boxes = [
        (a, b, c)
        for a in range(1, largest + 1)
        for b in range(a, largest // a + 1)
        for c in range(b, largest // (a * b) + 1)
    ]
    boxes.sort(key=lambda box: (math.prod(box), box))
    return ("2x2x2", "2x2x4", "2x4x4", *(f"{4 * a}x{4 * b}x{4 * c}" for a, b, c in boxes))


def _boxes(x: int, y: int, z: int) -> frozenset[str]:
    """3D topologies in multiples of four, each axis up to its own length, and the small ones: Ray's for v4 and v5p."""
    large = (f"{a}x{b}x{c}" for a in range(4, x + 1, 4) for b in range(4, y + 1, 4) for c in range(4, z + 1, 4))
    return frozenset({"2x2x1", "2x2x2", "2x2x4", "2x4x4", *large})


_SQUARES = ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16")

GENERATIONS: dict[str, TpuGeneration] = {
    generation.name: generation
    for generation in (
        TpuGeneration(
            name="v3",
            ray_name="v3",
            machines=(
                MachineType("ct3-hightpu-4t", "tpu-v3-device", 4, 96, 340, "2x2"),
                MachineType("ct3p-hightpu-4t", "tpu-v3-slice", 4, 48, 340, None),
            ),
            multi_host=("4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
            hbm_gib=32,
            hbm_gb_per_s=900,
            bf16_tflops=123,
            int8_tops=None,
            ici_gb_per_s=280,
            clock_ghz=0.94,
            cores_per_chip=2,
            ray_topologies=frozenset({"4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"}),
            autoscales=False,
        ),
        TpuGeneration(
            name="v4",
            ray_name="v4",
            machines=(
                MachineType(
                    "ct4p-hightpu-4t", "tpu-v4-podslice", 4, 240, 407, "2x2x1", dynamic_workload_scheduler=False
                ),
            ),
            multi_host=_cubes(64),
            hbm_gib=32,
            hbm_gb_per_s=1200,
            bf16_tflops=275,
            int8_tops=275,
            ici_gb_per_s=300,
            clock_ghz=1.05,
            cores_per_chip=2,
            ray_topologies=_boxes(12, 12, 16),
        ),
        TpuGeneration(
            name="v5e",
            ray_name="v5litepod",
            machines=(
                MachineType("ct5lp-hightpu-1t", "tpu-v5-lite-podslice", 1, 24, 48, "1x1"),
                MachineType("ct5lp-hightpu-4t", "tpu-v5-lite-podslice", 4, 112, 192, "2x2"),
                MachineType("ct5lp-hightpu-8t", "tpu-v5-lite-podslice", 8, 224, 384, "2x4"),
            ),
            multi_host=_SQUARES,
            hbm_gib=16,
            hbm_gb_per_s=819,
            bf16_tflops=197,
            int8_tops=394,
            ici_gb_per_s=200,
            clock_ghz=1.5,
            cores_per_chip=1,
            ray_topologies=frozenset({"1x1", "2x2", "2x8", *_SQUARES}),
        ),
        TpuGeneration(
            name="v5p",
            ray_name="v5p",
            machines=(MachineType("ct5p-hightpu-4t", "tpu-v5p-slice", 4, 208, 448, "2x2x1"),),
            multi_host=_cubes(140),
            hbm_gib=95,
            hbm_gb_per_s=2765,
            bf16_tflops=459,
            int8_tops=918,
            ici_gb_per_s=600,
            clock_ghz=1.75,
            cores_per_chip=2,
            ray_topologies=_boxes(16, 16, 24),
        ),
        TpuGeneration(
            name="v6e",
            ray_name="v6e",
            machines=(
                MachineType("ct6e-standard-1t", "tpu-v6e-slice", 1, 44, 176, "1x1"),
                MachineType("ct6e-standard-4t", "tpu-v6e-slice", 4, 180, 720, "2x2"),
                MachineType("ct6e-standard-8t", "tpu-v6e-slice", 8, 180, 1440, "2x4"),
            ),
            multi_host=_SQUARES,
            hbm_gib=32,
            hbm_gb_per_s=1638,
            bf16_tflops=918,
            int8_tops=1836,
            ici_gb_per_s=400,
            clock_ghz=1.75,
            cores_per_chip=1,
            ray_topologies=frozenset({"1x1", "2x2", "2x8", *_SQUARES}),
        ),
        TpuGeneration(
            name="7x",
            ray_name="v7x",
            machines=(
                MachineType("tpu7x-standard-1t", "tpu7x", 1, 56, 240, "1x1x1"),
                MachineType("tpu7x-standard-4t", "tpu7x", 4, 224, 960, "2x2x1"),
            ),
            multi_host=_cubes(144),
            hbm_gib=192,
            hbm_gb_per_s=7380,
            bf16_tflops=2307,
            int8_tops=None,
            ici_gb_per_s=600,
            clock_ghz=None,
            cores_per_chip=2,
            ray_topologies=frozenset(  # no 1x1x1, and few large boxes: no 4x4x12
                {"2x2x1", *_cubes(1), "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"}
            ),
            workload_policy=True,
        ),
    )
}
"""Every TPU generation that GKE sells and Podslice places, by name. Left out: v4's and v5e's `device` machines (ct4l,
ct5l), which the podslice ones replace, tpu7x-ultranet-4t, and v7 (tpu7), which Ray does not know yet."""


class TpuSlice(BaseModel):
    """One TPU slice: `TpuSlice("v5e", "4x8")`; written `v5e:4x8` on a command line and in Serve's `args`.

    An impossible one raises an error that names the choices. v5e and v6e sell 2x4 both as one host of eight chips and
    as two hosts of four, so there the machine type must be said: `TpuSlice("v5e", "2x4", "8t")`, `v5e:2x4:8t`.
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
        """`v5e:4x8`, with the machine's last part where it must be said."""
        short = f"{self.generation}:{self.topology}"
        ambiguous = len(self.facts.machines_for(self.topology)) > 1 and self.machine_type is not None
        return f"{short}:{self.machine.suffix}" if ambiguous else short

    @property
    def facts(self) -> TpuGeneration:
        """The row of the table that this is a slice of."""
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
        """The resource that Ray gives worker 0 of the slice alone, and by which a slice is reserved."""
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
