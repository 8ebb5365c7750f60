"""What the compiler says of a program, and from it the least time that one run of it can take."""

import time
from dataclasses import dataclass
from typing import Self

import jax

from apps.plan import hlo, traffic
from ray_configs.tpu_peaks import Peaks


@dataclass(frozen=True)
class Measured:
    """What the compiler says of a program, on each device. Bytes unless said otherwise.

    Linear in the number of layers, but for `seconds`.
    """

    arguments: float
    aliased: float
    temporaries: float
    code: float
    peak: float
    flops: float
    bytes_accessed: float
    """The compiler's own count; see `traffic` for why it is not what crosses HBM."""
    hbm_read: float
    hbm_written: float
    cycles: float
    ici_sent: float
    kernels: float
    """Number of Pallas calls."""
    seconds: float
    """That compiling took."""

    @classmethod
    def of(cls, compiled: jax.stages.Compiled, module: hlo.Module, seconds: float, **more: float) -> Self:
        """Everything that is read off a compiled program, and `more` that a subclass reads off it."""
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        counted = traffic.count(module)
        return cls(
            arguments=memory.argument_size_in_bytes,
            aliased=memory.alias_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
            code=memory.generated_code_size_in_bytes,
            peak=getattr(memory, "peak_memory_in_bytes", 0),
            flops=cost["flops"],
            bytes_accessed=cost["bytes accessed"],
            hbm_read=counted.hbm_read,
            hbm_written=counted.hbm_written,
            cycles=counted.cycles,
            ici_sent=counted.ici_sent,
            kernels=counted.kernels,
            seconds=seconds,
            **more,
        )


def compiled(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, hlo.Module, float]:
    """The program, its text as a module, and the seconds that compiling it took."""
    began = time.monotonic()
    program = lowered.compile()
    seconds = time.monotonic() - began
    return program, hlo.parse(program.as_text()), seconds


@dataclass(frozen=True)
class KernelCost:
    """What the compiler cannot see into: the Pallas kernels of one run, on each device, by hand."""

    hbm_bytes: float
    flops: float
    """As the kernel computes: whole blocks."""
    useful_flops: float
    """For the positions that a token may see; 0 where the kernel tells the compiler its own."""


@dataclass(frozen=True)
class RunTime:
    """Seconds of one run. `floor` is what no implementation of this program can beat on those chips; `estimate` adds
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


def run_time(measured: Measured, kernel: KernelCost, peaks: Peaks) -> RunTime:
    read = measured.hbm_read + measured.hbm_written
    kernel_hbm = kernel.hbm_bytes / peaks.hbm_bytes_per_s
    return RunTime(
        compute=(measured.flops + kernel.useful_flops) / peaks.flops_per_s,
        hbm=read / peaks.hbm_bytes_per_s + kernel_hbm,
        ici=measured.ici_sent / peaks.ici_bytes_per_s,
        compiler=measured.cycles / peaks.cycles_per_s if peaks.cycles_per_s else None,
        kernel=max(kernel_hbm, kernel.flops / peaks.flops_per_s),
        xla_hbm=read / peaks.hbm_bytes_per_s,
    )
