"""The plan as text for a terminal."""

from rich.console import Console
from rich.table import Table

from apps.plan.llm.report import Plan, Step
from apps.plan.llm.search import Found


def show(plan: Plan, console: Console) -> None:
    memory, mesh = plan.memory, " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    print_ = console.print
    size = f"{plan.parameters / 1e9:.2f} billion parameters"
    print_(f"[bold]{plan.model}[/bold] ({size}) on {plan.slice}", highlight=False)
    print_(
        f"{plan.chips} chips on {plan.hosts} host(s), mesh {mesh}; weights {plan.weights}, KV cache {plan.kv_cache}",
        highlight=False,
    )
    print_(f"[italic]{plan.label[0].upper()}{plan.label[1:]}.[/italic]\n", highlight=False)

    table = _table("HBM of each chip", "GiB")
    for name, size in (
        ("weights", memory.weights),
        (f"KV cache, {plan.pages} pages", memory.kv_cache),
        ("sampling state and inputs", memory.other),
        ("temporaries of the largest step", memory.temporaries),
        ("programs, all step sizes", memory.programs),
    ):
        table.add_row(name, f"{size:.2f}")
    table.add_section()
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    table.add_row(f"total: {verdict}", f"{memory.total:.2f}")
    table.add_row("usable, says the compiler", f"{memory.usable:.2f}")
    table.add_row("peak of the largest step, says the compiler", f"{memory.peak_by_compiler:.2f}")
    print_(table)

    table = _table("Largest batch of each length", *(f"{entry.context}" for entry in plan.batches))
    table.add_row("sequences", *(f"{entry.batch}" for entry in plan.batches))
    print_(table)

    decode, prefill = f"decode {plan.batch} x {plan.context}", f"prefill {plan.prefill.tokens} tokens"
    table = _table("A step on each chip", decode, prefill)
    for row in _step_rows(plan.decode, plan.prefill):
        table.add_row(*row)
    print_(table)

    table = _table("What follows", "at the floor", "estimate")
    for name, digits, field in (
        ("time per token, ms", 2, "time_per_token_ms"),
        ("tokens/s of the slice", 0, "tokens_per_s_per_slice"),
        (f"time to first token, {plan.prompt} in the prompt, ms", 1, "time_to_first_token_ms"),
        ("chips per million tokens an hour", 2, "chips_per_million_tokens_an_hour"),
    ):
        table.add_row(name, *(f"{getattr(side, field):,.{digits}f}" for side in (plan.at_floor, plan.estimate)))
    print_(table)
    for note in plan.notes:
        print_(f"- {note}", highlight=False)
    print_(f"- Compiling took {plan.compile_s:.0f} s.", highlight=False)


def _step_rows(*steps: Step) -> list[tuple[str, ...]]:
    def row(name: str, number: str, *values: float | None) -> tuple[str, ...]:
        return name, *("unknown" if value is None else format(value, number) for value in values)

    return [
        row("TFLOP", ".3f", *(s.flops / 1e12 for s in steps)),
        row("GB to and from HBM", ".3f", *(s.hbm_bytes / 1e9 for s in steps)),
        row("  of it the attention kernel's, by hand", ".3f", *(s.kernel_hbm_bytes / 1e9 for s in steps)),
        row("  over weights + live KV", ".2f", *(s.hbm_over_least for s in steps)),
        row("GB accessed, the compiler's count", ".3f", *(s.compiler_bytes_accessed / 1e9 for s in steps)),
        row("GB sent to other chips", ".4f", *(s.ici_bytes / 1e9 for s in steps)),
        row("ms at peak compute", ".2f", *(s.compute_s * 1e3 for s in steps)),
        row("ms at peak HBM bandwidth", ".2f", *(s.hbm_s * 1e3 for s in steps)),
        row("ms at peak interconnect", ".2f", *(s.ici_s * 1e3 for s in steps)),
        row("ms, floor: the longest of these", ".2f", *(s.floor_s * 1e3 for s in steps)),
        row("ms, the compiler's cycles (fusions alone)", ".2f", *(s.compiler_s and s.compiler_s * 1e3 for s in steps)),
        row("ms, the attention kernel, by hand", ".2f", *(s.kernel_s * 1e3 for s in steps)),
        row("ms, estimate: one after another", ".2f", *(s.estimate_s * 1e3 for s in steps)),
    ]


def show_search(found: Found, console: Console, rows: int = 24) -> None:
    goal = f" at {found.wanted_ms:g} ms per token" if found.wanted_ms else ""
    chosen = ", ".join(found.chosen) or "none of those tried"
    console.print(f"[bold]Cheapest that fits{goal}: {chosen}[/bold]", highlight=False)
    console.print(f"[italic]{found.label[0].upper()}{found.label[1:]}.[/italic]\n", highlight=False)
    table = _table("slice", "mesh", "chips", "$ an hour", "at least, ms", "estimate, ms")
    table.add_column("verdict")
    for c in found.candidates[:rows]:
        price = "" if c.dollars_an_hour is None else f"{c.dollars_an_hour:.2f}"
        estimate = f"{c.plan.estimate.time_per_token_ms:.2f}" if c.plan else ""
        mesh = f"{c.data_parallel} x {c.tensor_parallel}"
        table.add_row(c.slice, mesh, f"{c.chips}", price, f"{c.least_ms:.2f}", estimate, c.verdict)
    console.print(table)
    if len(found.candidates) > rows:
        console.print(f"... and {len(found.candidates) - rows} more that do not fit (--json has them)")


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
