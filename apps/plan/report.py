"""Report fields shared by all plans. All figures are computed; none was measured on a TPU."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from apps.plan.measured import KernelCost, Measured, RunTime
from ray_configs.tpu import TpuSlice

LABEL = (
    "computed, not measured: XLA's TPU compiler, run without a TPU, and published peak figures; kernels' bytes and "
    "operations are derived by hand from their loops, because the compiler's analysis does not cover kernels"
)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Run(Part):
    """One run of a program on each chip (each device, where the plan says so); seconds where the name ends in _s."""

    flops: float
    hbm_bytes: float = Field(description="counted over the compiled program, and the kernels' by hand")
    kernel_hbm_bytes: float = Field(description="of these, the kernels', by hand")
    kernel_flops: float = Field(description="by hand, as it computes them: masked positions too")
    compiler_bytes_accessed: float = Field(description="the compiler's own count; VMEM counts there too")
    ici_bytes: float = Field(description="sent to other chips, by the ring algorithms")
    compute_s: float
    hbm_s: float
    ici_s: float
    floor_s: float = Field(description="the longest of the three")
    compiler_s: float | None = Field(description="the compiler's cycles: no HBM copies, collectives or kernels in them")
    kernel_s: float = Field(
        description="of each kernel, the longest of its HBM time, its operations at peak and its instructions"
    )
    kernel_cycles: float = Field(description="of the kernels' instructions; 0: not counted")
    estimate_s: float = Field(description="max(compiler, HBM without kernels) + kernels + interconnect, one by one")


def run_fields(measured: Measured, kernels: Sequence[KernelCost], time: RunTime) -> dict[str, Any]:
    """The fields of a Run."""
    kernel = sum(kernels, KernelCost(0, 0, 0, 0))
    seconds = ("compute", "hbm", "ici", "floor", "compiler", "kernel", "estimate")
    return {
        "flops": measured.flops + kernel.useful_flops,
        "hbm_bytes": measured.hbm_read + measured.hbm_written + kernel.hbm_bytes,
        "kernel_hbm_bytes": kernel.hbm_bytes,
        "kernel_flops": kernel.flops,
        "kernel_cycles": kernel.cycles,
        "compiler_bytes_accessed": measured.bytes_accessed,
        "ici_bytes": measured.ici_sent,
        **{f"{name}_s": getattr(time, name) for name in seconds},
    }


class Plan(Part):
    label: str = LABEL
    model: str
    slice: str
    chips: int
    devices_per_chip: int
    notes: list[str]


def core_notes(slice: TpuSlice, cores: int) -> list[str]:
    if cores == 1:
        return []
    joined = ""
    if slice.generation == "v4":
        joined = " A v4's runtime joins the two into one device, which this compiler cannot be asked for."
    return [f"The compiler sees {cores} devices on each chip, one for each TensorCore.{joined}"]


def print_label(label: str, console: Console) -> None:
    console.print(f"[italic]{label[0].upper()}{label[1:]}.[/italic]\n", highlight=False)


def print_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(f"- {note}", highlight=False)


def table(first: str, *columns: str) -> Table:
    made = Table(box=None, pad_edge=False, title_justify="left")
    made.add_column(first)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def add_row(to: Table, name: str, number: str, *values: float | None) -> None:
    to.add_row(name, *("unknown" if value is None else format(value, number) for value in values))


def add_run_rows(to: Table, runs: Sequence[Run], over_least: Sequence[float] = ()) -> None:
    """Add rows with the work and time of one run of each program; `over_least`: HBM traffic over the least possible."""
    add_row(to, "TFLOP", ".3f", *(run.flops / 1e12 for run in runs))
    add_row(to, "GB to and from HBM", ".3f", *(run.hbm_bytes / 1e9 for run in runs))
    add_row(to, "  of it the kernels', by hand", ".3f", *(run.kernel_hbm_bytes / 1e9 for run in runs))
    if over_least:
        add_row(to, "  over weights + live KV", ".2f", *over_least)
    add_row(to, "GB accessed, the compiler's count", ".3f", *(run.compiler_bytes_accessed / 1e9 for run in runs))
    add_row(to, "GB sent to other chips", ".4f", *(run.ici_bytes / 1e9 for run in runs))
    for name, field in (
        ("ms at peak compute", "compute_s"),
        ("ms at peak HBM bandwidth", "hbm_s"),
        ("ms at peak interconnect", "ici_s"),
        ("ms, floor: the longest of these", "floor_s"),
        ("ms, the compiler's cycles (fusions alone)", "compiler_s"),
        ("ms, the kernels", "kernel_s"),
        ("ms, estimate: one after another", "estimate_s"),
    ):
        values = [getattr(run, field) for run in runs]
        add_row(to, name, ".2f", *(None if value is None else value * 1e3 for value in values))
