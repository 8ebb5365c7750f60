"""The plan as text for a terminal."""

from rich.console import Console

from apps.plan.llm.report import LLMPlan
from apps.plan.llm.search import Found
from apps.plan.report import add_run_rows, print_label, print_notes, table


def show(plan: LLMPlan, console: Console) -> None:
    memory, mesh = plan.memory, " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    print_ = console.print
    parameters = f"{plan.parameters / 1e9:.2f} billion parameters"
    if plan.active_parameters < plan.parameters:
        parameters += f", {plan.active_parameters / 1e9:.2f} of them active"
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    takes = f"{memory.total:.2f} of {memory.usable:.2f} GiB of each chip"
    where = f"[bold]{plan.model}[/bold] on {plan.slice}"
    print_(f"{where}: [bold]{verdict}[/bold], {takes}", highlight=False, soft_wrap=True)
    print_(parameters, highlight=False)
    print_(
        f"{plan.chips} chips on {plan.hosts} host(s), mesh {mesh}; weights {plan.weights}, KV cache {plan.kv_cache}",
        highlight=False,
    )
    print_label(plan.label, console)

    rows = table("HBM of each chip", "GiB")
    for name, size in (
        ("weights", memory.weights),
        (f"KV cache, {plan.pages} pages", memory.kv_cache),
        ("sampling state and inputs", memory.other),
        ("temporaries of the largest step", memory.temporaries),
        ("programs, all step sizes", memory.programs),
        *([("vision tower and images", memory.images)] if memory.images else ()),
    ):
        rows.add_row(name, f"{size:.2f}")
    rows.add_section()
    rows.add_row(f"total: {verdict}", f"{memory.total:.2f}")
    rows.add_row("usable, says the compiler", f"{memory.usable:.2f}")
    rows.add_row("peak of the largest step, says the compiler", f"{memory.peak_by_compiler:.2f}")
    print_(rows)

    rows = table("Largest batch of each length", *(f"{entry.context}" for entry in plan.batches))
    rows.add_row("sequences", *(f"{entry.batch}" for entry in plan.batches))
    print_(rows)

    decode, prefill = f"decode {plan.batch} x {plan.context}", f"prefill {plan.prefill.tokens} tokens"
    rows = table("A step on each chip", decode, prefill)
    steps = (plan.decode, plan.prefill)
    add_run_rows(rows, steps, [step.hbm_over_least for step in steps])
    print_(rows)

    rows = table("What follows", "at the floor", "estimate")
    for name, digits, field in (
        ("time per token, ms", 2, "time_per_token_ms"),
        ("tokens/s of the slice", 0, "tokens_per_s_per_slice"),
        (f"time to first token, {plan.prompt} in the prompt, ms", 1, "time_to_first_token_ms"),
        ("chips per million tokens an hour", 2, "chips_per_million_tokens_an_hour"),
        ("prompts' tokens/s (llm-d's peakPrefillThroughput)", 0, "prefill_tokens_per_s"),
        ("a decoding sequence, in tokens of a prompt (routers)", 2, "sequence_in_prompt_tokens"),
    ):
        rows.add_row(name, *(f"{getattr(side, field):,.{digits}f}" for side in (plan.at_floor, plan.estimate)))
    print_(rows)
    print_notes([*plan.notes, f"Compiling took {plan.compile_s:.0f} s."], console)


def show_search(found: Found, console: Console, most: int = 24) -> None:
    goal = f" at {found.wanted_ms:g} ms per token" if found.wanted_ms else ""
    chosen = ", ".join(found.chosen) or "none of those tried"
    console.print(f"[bold]Cheapest that fits{goal}: {chosen}[/bold]", highlight=False, soft_wrap=True)
    print_label(found.label, console)
    rows = table("slice", "mesh", "chips", "$ an hour", "at least, ms", "estimate, ms")
    rows.add_column("verdict")
    for c in found.candidates[:most]:
        price = "" if c.dollars_an_hour is None else f"{c.dollars_an_hour:.2f}"
        estimate = f"{c.plan.estimate.time_per_token_ms:.2f}" if c.plan else ""
        mesh = f"{c.data_parallel} x {c.tensor_parallel}"
        rows.add_row(c.slice, mesh, f"{c.chips}", price, f"{c.least_ms:.2f}", estimate, c.verdict)
    console.print(rows)
    if len(found.candidates) > most:
        console.print(f"... and {len(found.candidates) - most} more that do not fit (--json has them)")
