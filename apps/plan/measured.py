"""The compiler's figures for a program, and the least time that one run of it can take."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import jax

from apps.plan import hlo, traffic
from ray_configs.tpu.peaks import Peaks


@dataclass(frozen=True)
class Measured:
    """The compiler's figures for a program on each device, in bytes unless noted.

    All but `seconds` are linear in the number of layers.
    """

    arguments: float
    aliased: float
    temporaries: float
    code: float
    peak: float
    flops: float
    bytes_accessed: float
    """The compiler's own count; `traffic` explains why it is not the HBM traffic."""
    hbm_read: float
    hbm_written: float
    cycles: float
    ici_sent: float
    collectives: float
    """Number of exchanges between devices."""
    kernels: float
    """Number of Pallas calls."""
    seconds: float
    """Compile time."""

    @classmethod
    def of(
        cls, compiled: jax.stages.Compiled, module: hlo.Module, seconds: float, blocks: float = 1, **more: float
    ) -> Self:
        """Reads all figures off a compiled program; `more` has those that a subclass adds. `blocks`: see `traffic`."""
        memory: Any = compiled.memory_analysis()
        cost: Any = compiled.cost_analysis()
        counted = traffic.count(module, blocks=blocks)
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
            collectives=sum(counted.collectives.values()),
            kernels=counted.kernels,
            seconds=seconds,
            **more,
        )


def compiled(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, hlo.Module, float]:
    """(program, parsed module, seconds that compiling took)."""
    began = time.monotonic()
    program = lowered.compile()
    seconds = time.monotonic() - began
    return program, hlo.parse(program.as_text() or ""), seconds


@dataclass(frozen=True)
class KernelCost:
    """Analytic cost of one run's calls of a Pallas kernel on each device, which the compiler cannot analyse."""

    hbm_bytes: float
    flops: float
    """Operations that the kernel executes: whole blocks, masked positions included."""
    useful_flops: float
    """Operations for unmasked positions only; 0 if the kernel has a cost estimate of its own."""
    cycles: float
    """Cycles of the instructions that the compiler made, without waits for memory; 0 if they were not counted."""

    def seconds(self, peaks: Peaks) -> float:
        """The longest of its HBM time and compute time, by hand, and its instructions' cycles."""
        return max(
            self.hbm_bytes / peaks.hbm_bytes_per_s,
            self.flops / peaks.flops_per_s,
            self.cycles / (peaks.cycles_per_s or math.inf),
        )

    def __add__(self, other: "KernelCost") -> "KernelCost":
        return KernelCost(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class RunTime:
    """Times of one run, in seconds. `floor` is a lower bound for this program on those chips. `estimate` adds up the
    program's parts one after another; only each fusion's own reads overlap with its computation."""

    compute: float
    hbm: float
    ici: float
    compiler: float | None
    """The compiler's cycle estimate divided by the clock rate: fusions only. Copies from HBM, collectives and kernels
    have no cycle estimate."""
    kernel: float
    """The kernels, one after another: see `KernelCost.seconds`."""
    xla_hbm: float
    """`hbm` without the kernels."""

    @property
    def floor(self) -> float:
        return max(self.compute, self.hbm, self.ici)

    @property
    def estimate(self) -> float:
        return max(self.compiler or 0.0, self.xla_hbm) + self.kernel + self.ici


def run_time(measured: Measured, kernels: Sequence[KernelCost], peaks: Peaks) -> RunTime:
    read = measured.hbm_read + measured.hbm_written
    return RunTime(
        compute=(measured.flops + sum(kernel.useful_flops for kernel in kernels)) / peaks.flops_per_s,
        hbm=(read + sum(kernel.hbm_bytes for kernel in kernels)) / peaks.hbm_bytes_per_s,
        ici=measured.ici_sent / peaks.ici_bytes_per_s,
        compiler=measured.cycles / peaks.cycles_per_s if peaks.cycles_per_s else None,
        kernel=sum(kernel.seconds(peaks) for kernel in kernels),
        xla_hbm=read / peaks.hbm_bytes_per_s,
    )
