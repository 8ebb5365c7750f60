"""Prints the plan of a workload: ten lines, and what they leave out."""

from collections.abc import Iterator

from rich.console import Console

from apps.plan.report import print_label, print_notes, table
from apps.plan.workload.answer import Percentiles, ServedTrace
from apps.plan.workload.planning import WorkloadPlan, WorkloadSearch


def show(plan: WorkloadPlan, console: Console) -> None:
    print_label(plan.label, console)
    console.print(f"[bold]{plan.model}[/bold] {where(plan)}: {asked(plan)}", highlight=False)
    made = table("")
    made.columns[0].no_wrap = True
    made.add_column()
    for name, line in lines(plan):
        made.add_row(f"  {name}", line)
    console.print(made, highlight=False)
    print_notes(plan.notes, console)


def show_search(found: WorkloadSearch, console: Console) -> None:
    print_label(found.label, console)
    console.print(f"{found.source}: {found.slo}", highlight=False)
    made = table("Slice", "Replicas", "Chips", "$ an hour", "$ a million", "First token p99", "Per token p99", "Good")
    for plan in found.found:
        served, cost = plan.served, plan.cost
        made.add_row(
            str(plan.slice),
            str(served.replicas),
            str(plan.chips),
            "" if cost is None else f"{cost.dollars_an_hour:.2f}",
            "" if cost is None else f"{cost.dollars_a_million_tokens or 0:.2f}",
            "" if served.ttft is None else f"{served.ttft.p99 * 1e3:.0f} ms",
            "" if served.tpot is None else f"{served.tpot.p99 * 1e3:.1f} ms",
            f"{served.good or 0:.1%}",
        )
    console.print(made, highlight=False)
    for plan in found.found[:1]:
        console.print(f"\n{plan.slice}: {plan.served.binds}; {sure(plan)}", highlight=False)
    print_notes([f"{name}: {why}." for name, why in found.refused.items()], console)


def where(plan: WorkloadPlan) -> str:
    replicas = plan.served.replicas
    count = f"{replicas} replicas" if replicas > 1 else "one replica"
    if plan.slice is None:
        return f"on {count} like this machine"
    return f"on {count} of {plan.slice} ({plan.chips} chips)"


def asked(plan: WorkloadPlan) -> str:
    return f"{plan.served.requests:,} requests of {plan.source}"


def lines(plan: WorkloadPlan) -> Iterator[tuple[str, str]]:
    """The answer's lines, each with its name."""
    served = plan.served
    yield "first token", _times(plan, "ttft")
    yield "each token", _times(plan, "tpot")
    yield "a second", f"{served.tokens_per_s:,.0f} tokens of answers, {served.requests_per_s:.3g} requests"
    if plan.slo is not None:
        verdict = "met" if served.meets else "MISSED"
        yield "goodput", f"{served.goodput_per_s:.3g} requests a second, {served.good:.1%}; {verdict}: {plan.slo}"
    yield "prefix cache", f"{served.hit_rate:.0%} of the prompts' tokens found there"
    yield "binds", served.binds
    shares = served.shares
    yield (
        "devices",
        f"HBM {shares.hbm:.0%}, compute {shares.compute:.0%}, interconnect {shares.interconnect:.0%}, waiting for the "
        f"host {shares.host:.0%}, idle {shares.idle:.0%} of the time; {served.batch:.3g} sequences a step",
    )
    yield "queue", _queue(served)
    if plan.cost is not None:
        cost = plan.cost
        million = cost.dollars_a_million_tokens
        tokens = "" if million is None else f", ${million:.2f} a million tokens of answers"
        yield "cost", f"${cost.dollars_an_hour:.2f} an hour{tokens}"
    if plan.spread is not None:
        yield "how sure", sure(plan)


def sure(plan: WorkloadPlan) -> str:
    if plan.spread is None:
        return ""
    low, high = plan.spread
    return (
        f"steps take {plan.correction:.2f} times their estimate here; published figures were {low:.2f} to {high:.2f} "
        "times what that gives (docs: calibration)"
    )


def _times(plan: WorkloadPlan, name: str) -> str:
    own: Percentiles | None = getattr(plan.served, name)
    if own is None:
        return "none"
    others = []
    for what, served in (("estimate", plan.estimate), ("floor", plan.floor)):
        times: Percentiles | None = getattr(served, name, None)
        if times is not None:
            others.append(f"{what} {times.p50 * 1e3:.3g}")
    return f"{own}" + (f" (p50 in ms: {', '.join(others)})" if others else "")


def _queue(served: ServedTrace) -> str:
    parts = [f"requests wait for a slot {served.full:.0%} of the time, for pages {served.short_of_pages:.0%}"]
    parts += [f"{count:,} refused: {why}" for why, count in served.refused.items()]
    if served.preemptions:
        parts.append(f"{served.preemptions:,} preemptions")
    return "; ".join(parts) + f"; the busiest interpreter works {served.interpreter:.0%}"
