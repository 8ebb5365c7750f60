"""The plan of a Stable Diffusion model, as JSON and as text."""

from pydantic import Field
from rich.console import Console

from apps.plan.report import Part, Plan, Run, add_row, add_run_rows, print_label, print_notes, table


class Program(Run):
    name: str
    pictures: float = Field(description="that each device works on")
    weights_gib: float
    inputs_gib: float = Field(description="what it works on, as it lies in memory")
    temporaries_gib: float
    code_gib: float = Field(description="of the program itself, which stays in HBM")
    kernels: int = Field(description="calls of the attention kernel")
    compile_s: float


class Rate(Part):
    """Rate of whole pictures, from prompt to pixels, at one batch size per device."""

    pictures: float
    seconds: float = Field(description="for all of them, at the estimate")
    per_chip_s: float = Field(description="pictures a second from each chip, at the estimate")
    per_chip_s_at_floor: float
    hbm_gib: float = Field(description="of a chip: all weights and programs, and the largest program's other memory")
    fits: bool


class ImagePlan(Plan):
    configs_from: str
    size: str
    dtype: str
    guided: bool
    steps: int = Field(description="denoising steps of a picture")
    weights_gib: float = Field(description="on each device")
    usable_gib: float = Field(description="what the compiler lets programs use of a device's HBM")
    denoising: list[Program]
    decoder: Program
    text_encoder: Program
    control: Program | None = Field(None, description="a ControlNet, beside the step for the most pictures")
    rates: list[Rate]


def show(plan: ImagePlan, console: Console) -> None:
    unit = "chip" if plan.devices_per_chip == 1 else "device (half a chip)"
    fitting = [rate.pictures for rate in plan.rates if rate.fits]
    verdict = f"fits, up to {max(fitting):g} pictures at once on each {unit}" if fitting else "DOES NOT FIT"
    where = f"[bold]{plan.model}[/bold], {plan.size}, on {plan.slice}"
    console.print(f"{where}: [bold]{verdict}[/bold]", highlight=False, soft_wrap=True)
    console.print(f"{plan.chips} chips", highlight=False)
    print_label(plan.label, console)
    programs = [*plan.denoising, plan.decoder, plan.text_encoder, *([] if plan.control is None else [plan.control])]
    rows = table(f"One run on each {unit}", *(program.name for program in programs))
    add_row(rows, f"pictures on each {unit}", "g", *(p.pictures for p in programs))
    add_row(rows, "GiB of weights", ".2f", *(p.weights_gib for p in programs))
    add_row(rows, "GiB of temporaries", ".2f", *(p.temporaries_gib for p in programs))
    add_row(rows, "GiB of code", ".2f", *(p.code_gib for p in programs))
    add_run_rows(rows, programs)
    console.print(rows)

    first = f"{plan.steps} steps, pictures at once"
    rows = table(first, "seconds", "pictures/s/chip", "at the floor", "HBM of a chip, GiB", "")
    for rate in plan.rates:
        verdict = "fits" if rate.fits else "DOES NOT FIT"
        numbers = (rate.seconds, rate.per_chip_s, rate.per_chip_s_at_floor)
        rows.add_row(f"{rate.pictures:g}", *(f"{n:.3g}" for n in numbers), f"{rate.hbm_gib:.2f}", verdict)
    console.print(rows)
    print_notes(plan.notes, console)
