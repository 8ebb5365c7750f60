"""Holds the simulation of `podslice plan` against the engine that it simulates.

    python -m tools.plan_reality apps/llm/demo/model
    python -m tools.plan_reality CHECKPOINT --trace held_back.jsonl

An engine on this machine serves requests of all lengths, and step times are fitted to its steps. Then it serves others,
in time: 1, 8 and 32 at once, Poisson arrivals, conversations, and traces given. Each is simulated too, with the times
that were fitted before. Three replicas are engines whose steps sleep for those times, behind the real router.

Nothing else may run on the machine. A row has what was measured, what was simulated and the difference.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from apps.plan.simulation.requests import Trace, TraceRequest, drawn, length
from apps.plan.workload import traces

BUSY = 0.7
"""Rate of arrivals over the rate at which 32 at once were served."""
PAGE = 32
BURST = 7

app = typer.Typer(add_completion=False)


@app.command()
def main(
    model: Annotated[str, typer.Argument(help="A checkpoint.")],
    trace: Annotated[list[Path] | None, typer.Option(help="Served besides; as `podslice plan` reads.")] = None,
    random_weights: Annotated[bool, typer.Option(help="For a folder with nothing but config.json.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="The engine's max_batch_size.")] = 32,
    replicas: Annotated[int, typer.Option(min=0, help="That sleep; 0: none.")] = 3,
    rounds: Annotated[
        int, typer.Option(min=1, help="Each with step times of its own; what is measured is the mean.")
    ] = 3,
    scale: Annotated[float, typer.Option(min=0.01, help="So many times as many requests.")] = 1.0,
) -> None:
    """Print the comparison."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from apps.plan.simulation import fitted, measured, recording
    from apps.plan.simulation.fleet import SimulatedService
    from ray_configs.llm import EngineConfig

    given = [(path.name, traces.read(path)) for path in trace or []]
    config = EngineConfig(model=model, random_weights=random_weights, max_batch_size=batch, speculation="off")
    engine, devices = recording.load(config)
    table = Table("Requests", "", "first token, ms", "p99", "each token, ms", "p99", "tokens/s", "found")
    real: dict[str, tuple[Trace, list[Any]]] = {}
    steps, rate = list[Any](), 0.0
    try:
        recording.serve(engine, drawn(length("64"), length("16"), 16, concurrency=8), "warm")
        for number in range(rounds):
            typer.echo(f"round {number + 1}")
            steps += measured.timed(engine, devices)
            longest = engine.capabilities.max_model_len
            for name, known in (*of_all_kinds(longest, batch, scale), *given):
                requests = arriving(name, BUSY * rate, longest, scale) if known is None else known
                fates = recording.serve(engine, requests, f"{name} {number}")
                if requests.concurrency == batch and not rate:
                    rate = len(fates) / max(fate.ended for fate in fates)
                real.setdefault(name, (requests, []))[1].append(fates)
        times, host = fitted.fit(steps), replace(fitted.host_times(steps), request_s=apart(real[f"{batch} at once"][1]))
        typer.echo(f"fitted to {len(steps):,} steps: off by {times.error:.1%} in the median; {host}")
        sizes, executor = engine.capabilities, engine.loops[0].executor
        service = SimulatedService(engine.loops[0].stepper.config, executor.pages, sizes.max_model_len, times, host)
        for name, (requests, runs) in real.items():
            compare(table, name, service, requests, runs)
        if replicas:
            sleep(table, config, service, replicas, rate, (scale, rounds), executor.skips_padding)
    finally:
        engine.shutdown()
    Console(width=140).print(table)


def of_all_kinds(longest: int, batch: int, scale: float) -> Iterator[tuple[str, Trace | None]]:
    """Names, and what is served; None: `arriving` knows, once the rate is known."""
    prompt, answer = length(f"32:{min(512, longest // 2)}"), length(f"{min(128, longest // 4)}")
    for number, (at_once, count) in enumerate(((1, 32), (8, 96), (batch, 7 * batch))):
        yield f"{at_once} at once", drawn(prompt, answer, round(count * scale), concurrency=at_once, seed=number)
    yield "Poisson", None
    yield "conversations", None


def arriving(name: str, rate: float, longest: int, scale: float) -> Trace:
    """Requests at a rate."""
    if name == "Poisson":
        prompt, answer = length(f"32:{min(512, longest // 2)}"), length(f"{min(128, longest // 4)}")
        return drawn(prompt, answer, round(240 * scale), rate=rate, seed=11)
    return conversations(round(60 * scale), rate, longest)


def conversations(count: int, rate: float, longest: int, seed: int = 12) -> Trace:
    """Conversations of a few turns, each with all that was said before; all begin alike."""
    dice, at, found = random.Random(seed), 0.0, list[TraceRequest]()
    for number in range(count):
        at += dice.expovariate(rate / 4)
        when, blocks = at, [-1, -2, *(1000 * number + block for block in range(dice.randint(1, 5)))]
        for turn in range(dice.randint(2, 6)):
            prompt, answer = len(blocks) * PAGE + dice.randint(1, PAGE - 1), dice.randint(16, 96)
            if prompt + answer > longest:
                break
            found.append(TraceRequest(when, prompt, answer, tuple(blocks), PAGE))
            blocks += [1000 * number + 100 * (turn + 1) + block for block in range(dice.randint(1, 4))]
            when += dice.expovariate(0.5)
    return Trace(sorted(found, key=lambda each: each.at_s))


def sleep(
    table: Table, config: Any, service: Any, replicas: int, rate: float, size: tuple[float, int], skips_padding: bool
) -> None:
    """Engines that sleep, behind a router."""
    from apps.llm.engine.engine import JaxEngine
    from apps.llm.router.fleet import Fleet
    from apps.llm.text.model_files import tokenizer_of
    from apps.plan.simulation import recording
    from apps.plan.simulation.sleeping import SleepingDevices

    scale, rounds = size
    devices = SleepingDevices(service.times, service.pages, skips_padding)
    engines = [JaxEngine.load(config, tokenizer_of, devices) for _ in range(replicas)]
    fleet = Fleet(engines[0].capabilities)
    try:
        for number, engine in enumerate(engines):
            fleet.join(engine, f"replica {number}")
        several = replace(service, replicas=replicas)
        for name in ("Poisson", "conversations"):
            requests = arriving(name, replicas * BUSY * rate, service.max_len, replicas * scale)
            runs = [recording.serve(fleet, requests, f"{name} sleeping {number}") for number in range(rounds)]
            compare(table, f"{name}, {replicas} replicas that sleep", several, requests, runs)
    finally:
        fleet.shutdown()
        for engine in engines:
            engine.shutdown()


def apart(runs: Sequence[Sequence[Any]]) -> float:
    """Seconds from one request's submission to the next, where all come at once: the client's own work."""
    return median((fates[BURST].arrived - fates[0].arrived) / BURST for fates in runs)


def compare(table: Table, name: str, service: Any, requests: Trace, runs: Sequence[Sequence[Any]]) -> None:
    """Add rows of what was measured, simulated, and the difference; and how far the measured runs are apart."""
    from apps.plan.simulation.fleet import Simulation

    measured = [summary(fates) for fates in runs]
    means = [mean(values) for values in zip(*measured)]
    simulated = summary(Simulation(service, requests).run())
    table.add_section()
    for what, side, values in ((name, "measured", means), ("", "simulated", simulated)):
        shown = [f"{value * 1e3:.2f}" for value in values[:4]]
        table.add_row(what, side, *shown, f"{values[4]:,.0f}", f"{values[5]:.1%}")
    off = [f"{ours / theirs - 1:+.1%}" if theirs else "" for theirs, ours in zip(means, simulated)]
    table.add_row("", "difference", *off)
    apart = [f"{(max(values) - min(values)) / of:.1%}" if of else "" for values, of in zip(zip(*measured), means)]
    table.add_row("", "runs differ by", *apart)
    typer.echo(f"{name}: {', '.join(off)}; runs differ by {', '.join(apart)}")


def summary(fates: Sequence[Any]) -> list[float]:
    """Mean and p99 of times to first tokens and of times per token, tokens a second, and the share found."""
    from apps.plan.workload.answer import Percentiles

    ttft, tpot = (Percentiles.of([getattr(fate, name) for fate in fates]) for name in ("ttft", "tpot"))
    assert ttft is not None and tpot is not None
    rate = sum(fate.answer for fate in fates) / max(fate.ended for fate in fates)
    found = sum(fate.cached for fate in fates) / sum(fate.prompt for fate in fates)
    return [ttft.mean, ttft.p99, tpot.mean, tpot.p99, rate, found]


if __name__ == "__main__":
    app()
