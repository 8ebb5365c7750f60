"""From what a step moves and computes to the least time it can take, and to tokens, chips and waiting times."""

from dataclasses import dataclass

from apps.llm.engine.plan.kernel import KernelCost
from apps.llm.engine.plan.program import Measured
from ray_configs.tpu import TpuSlice

TOKENS_AN_HOUR = 1_000_000


@dataclass(frozen=True)
class Peaks:
    """One device's published limits. A device is a chip, or one of its two TensorCores where they are apart."""

    flops_per_s: float
    hbm_bytes_per_s: float
    ici_bytes_per_s: float
    cycles_per_s: float | None

    @classmethod
    def of(cls, slice: TpuSlice, devices: int) -> "Peaks":
        facts, cores = slice.facts, devices // slice.chips
        return cls(
            flops_per_s=facts.bf16_tflops * 1e12 / cores,  # int8 weights are multiplied as bfloat16
            hbm_bytes_per_s=facts.hbm_gb_per_s * 1e9 / cores,
            ici_bytes_per_s=facts.ici_gb_per_s * 1e9 / ports(slice) * fewest_links(slice),
            cycles_per_s=facts.clock_ghz * 1e9 if facts.clock_ghz else None,
        )


def ports(slice: TpuSlice) -> int:
    """Links of a chip: two for each axis of its generation's torus."""
    return 2 * len(slice.topology.split("x"))


def fewest_links(slice: TpuSlice) -> int:
    """Links that the chip with the fewest neighbours has: a ring over all chips goes no faster than it can.

    An axis is closed to a ring, and so gives two, only where it has the pod's full length (v3, v5e, v6e) or all axes
    are multiples of four (v4, v5p, 7x, whose cubes are joined by optical switches).
    """
    axes = [int(length) for length in slice.topology.split("x")]
    if len(axes) == 3:
        closed = [all(length % 4 == 0 for length in axes)] * 3
    else:
        pod = 32 if slice.generation == "v3" else 16
        closed = [length == pod for length in axes]
    return max(1, sum(0 if length == 1 else 2 if ring else 1 for length, ring in zip(axes, closed)))


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step. `floor` is what no implementation of this program can beat on those chips; `estimate` adds
    up what this one does one after another, with nothing overlapped but each fusion's own reads."""

    compute: float
    hbm: float
    ici: float
    compiler: float | None
    """The compiler's cycles over the clock: its fusions alone. Copies from HBM, collectives and the attention kernel
    have no cycles in the compiled program."""
    kernel: float
    """The attention kernel, by hand: the longer of its reads and its products."""
    xla_hbm: float
    """Of `hbm`, all but the kernel."""

    @property
    def floor(self) -> float:
        return max(self.compute, self.hbm, self.ici)

    @property
    def estimate(self) -> float:
        return max(self.compiler or 0.0, self.xla_hbm) + self.kernel + self.ici


def step_time(measured: Measured, kernel: KernelCost, peaks: Peaks) -> StepTime:
    read = measured.hbm_read + measured.hbm_written
    kernel_hbm = kernel.hbm_bytes / peaks.hbm_bytes_per_s
    return StepTime(
        compute=(measured.flops + kernel.useful_flops) / peaks.flops_per_s,
        hbm=read / peaks.hbm_bytes_per_s + kernel_hbm,
        ici=measured.ici_sent / peaks.ici_bytes_per_s,
        compiler=measured.cycles / peaks.cycles_per_s if peaks.cycles_per_s else None,
        kernel=max(kernel_hbm, kernel.flops / peaks.flops_per_s),
        xla_hbm=read / peaks.hbm_bytes_per_s,
    )


@dataclass(frozen=True)
class Rates:
    """What a slice of one replica gives at a time per decode step."""

    step_s: float
    tokens_per_s: float
    chips_per_million_tokens_an_hour: float

    @classmethod
    def of(cls, step_s: float, batch: int, chips: int) -> "Rates":
        tokens = batch / step_s
        return cls(step_s, tokens, chips * TOKENS_AN_HOUR / 3600 / tokens)
