"""From what a program moves and computes to the least time that one run of it can take."""

from dataclasses import dataclass
from typing import Protocol

from ray_configs.tpu_peaks import Peaks


class Measured(Protocol):
    """What the compiler says of a program, on each device."""

    flops: float
    hbm_read: float
    hbm_written: float
    cycles: float
    ici_sent: float


@dataclass(frozen=True)
class KernelCost:
    """What the compiler cannot see into: the Pallas kernels of one run, on each device, by hand."""

    hbm_bytes: float
    flops: float
    """As the kernel computes: whole blocks."""
    useful_flops: float
    """For the positions that a token may see."""


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
