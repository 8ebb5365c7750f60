"""What GKE sells of each TPU generation: machine types, topologies and peak figures.

Sources: GKE's and Cloud TPU's tables; Ray 2.60's list of topologies that its slice reservation accepts.
"""

import math
from dataclasses import dataclass


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
    """Topology of a single-host slice of this machine; None: sold only as part of a larger slice."""
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
    """TensorCore clock, which converts the compiler's cycles into time; None where none is published."""
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
        """The last machine of four chips. Except for v3, single hosts use it too."""
        return [machine for machine in self.machines if machine.chips == 4][-1]

    def machines_for(self, topology: str) -> tuple[MachineType, ...]:
        """Machine types that such a slice can consist of, single hosts first; empty: there is no such slice."""
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
"""Every TPU generation that GKE sells and Podslice supports, by name. Left out: v4's and v5e's `device` machines (ct4l,
ct5l), which the podslice ones replace, tpu7x-ultranet-4t, and v7 (tpu7), which Ray does not know yet."""
