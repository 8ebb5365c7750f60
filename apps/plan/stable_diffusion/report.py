"""The plan as it is printed or written as JSON. Everything in it is computed; nothing was measured on a TPU."""

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

LABEL = (
    "computed, not measured: XLA's TPU compiler, run without a TPU, and published peak figures; what the flash "
    "attention kernel moves and takes is worked out by hand, for the compiler cannot see into it"
)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Program(Part):
    """One run of a program, on each chip (on each device, where a chip is two); seconds where the name ends in _s."""

    name: str
    pictures: float = Field(description="that each device works on")
    weights_gib: float
    inputs_gib: float = Field(description="what it works on, as it lies in memory")
    temporaries_gib: float
    flops: float
    hbm_bytes: float = Field(description="counted over the compiled program, and the kernel's by hand")
    kernel_hbm_bytes: float = Field(description="of these, the flash attention kernel's, by hand")
    compiler_bytes_accessed: float = Field(description="the compiler's own count; VMEM counts there too")
    kernels: int = Field(description="calls of the flash attention kernel")
    compute_s: float
    hbm_s: float
    floor_s: float = Field(description="the longer of the two, or of the interconnect's")
    compiler_s: float | None = Field(description="the compiler's cycles: no HBM copies, collectives or kernels in them")
    kernel_s: float
    estimate_s: float = Field(description="max(compiler, HBM without kernel) + kernel + interconnect, one by one")
    compile_s: float


class Rate(Part):
    """Pictures from prompt to pixels, with that many at once on each device."""

    pictures: float
    seconds: float = Field(description="for all of them, at the estimate")
    per_chip_s: float = Field(description="pictures a second from each chip, at the estimate")
    per_chip_s_at_floor: float
    hbm_gib: float = Field(description="of a chip: all weights, and the largest program's other memory")
    fits: bool


class Plan(Part):
    label: str = LABEL
    model: str
    configs_from: str
    slice: str
    chips: int
    devices_per_chip: int
    size: str
    dtype: str
    guided: bool
    steps: int = Field(description="denoising steps of a picture")
    weights_gib: float = Field(description="on each device")
    usable_gib: float = Field(description="what the compiler lets programs use of a device's HBM")
    denoising: list[Program]
    decoder: Program
    text_encoder: Program
    rates: list[Rate]
    notes: list[str]


def show(plan: Plan, console: Console) -> None:
    unit = "chip" if plan.devices_per_chip == 1 else "device (half a chip)"
    console.print(f"[bold]{plan.model}[/bold], {plan.size}, on {plan.slice}: {plan.chips} chips", highlight=False)
    console.print(f"[italic]{plan.label[0].upper()}{plan.label[1:]}.[/italic]\n", highlight=False)
    programs = [*plan.denoising, plan.decoder, plan.text_encoder]
    table = Table(box=None, pad_edge=False)
    table.add_column(f"One run on each {unit}")
    for program in programs:
        table.add_column(program.name, justify="right")

    def row(name: str, form: str, *values: float | None) -> None:
        table.add_row(name, *("" if value is None else format(value, form) for value in values))

    row(f"pictures on each {unit}", "g", *(p.pictures for p in programs))
    row("GiB of weights", ".2f", *(p.weights_gib for p in programs))
    row("GiB of temporaries", ".2f", *(p.temporaries_gib for p in programs))
    row("TFLOP", ".2f", *(p.flops / 1e12 for p in programs))
    row("GB to and from HBM", ".1f", *(p.hbm_bytes / 1e9 for p in programs))
    row("  of it the flash kernel's, by hand", ".1f", *(p.kernel_hbm_bytes / 1e9 for p in programs))
    row("GB accessed, the compiler's count", ".1f", *(p.compiler_bytes_accessed / 1e9 for p in programs))
    row("ms at peak compute", ".1f", *(p.compute_s * 1e3 for p in programs))
    row("ms at peak HBM bandwidth", ".1f", *(p.hbm_s * 1e3 for p in programs))
    row("ms, floor", ".1f", *(p.floor_s * 1e3 for p in programs))
    row("ms, the compiler's cycles", ".1f", *(p.compiler_s and p.compiler_s * 1e3 for p in programs))
    row("ms, the flash kernel, by hand", ".1f", *(p.kernel_s * 1e3 for p in programs))
    row("ms, estimate: one after another", ".1f", *(p.estimate_s * 1e3 for p in programs))
    console.print(table)

    table = Table(box=None, pad_edge=False)
    for name in (
        f"{plan.steps} steps, pictures at once",
        "seconds",
        "pictures/s/chip",
        "at the floor",
        "HBM of a chip, GiB",
        "",
    ):
        table.add_column(name, justify="right" if table.columns else "left")
    for rate in plan.rates:
        verdict = "fits" if rate.fits else "DOES NOT FIT"
        numbers = (rate.seconds, rate.per_chip_s, rate.per_chip_s_at_floor)
        table.add_row(f"{rate.pictures:g}", *(f"{n:.3g}" for n in numbers), f"{rate.hbm_gib:.2f}", verdict)
    console.print(table)
    for note in plan.notes:
        console.print(f"- {note}", highlight=False)
