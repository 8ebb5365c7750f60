"""Computes what the planner estimates for every published figure in `apps/plan/calibration/figures.json`, and the page.

    python -m tools.calibrate              all figures: an hour or two
    python -m tools.calibrate 13B 'Qwen3 8B'   those whose names have one of these
    python -m tools.calibrate --page       the page alone, of what is known

Each figure is written as soon as it is known.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from apps.plan.calibration import FIGURES, Figure, correction, figures, of_generation, spread

PAGE = Path(__file__).parent.parent / "docs" / "gke" / "calibration.md"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of figures' names; default: all.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Compute nothing.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Only those that were never computed.")] = False,
) -> None:
    """Compute estimates, and write them and the page."""
    every = list(figures())
    for number, figure in enumerate(every):
        named = not names or any(name in figure.name for name in names)
        if page or not named or (missing and figure.estimate is not None):
            continue
        typer.echo(f"{figure.name} ({figure.system}, {figure.slice})")
        try:
            every[number] = computed(figure)
        except Exception as error:
            typer.echo(f"  failed: {str(error).splitlines()[0]}", err=True)
            continue
        typer.echo(f"  published {figure.published:g} {figure.unit}, estimate {every[number].estimate:g}")
        content = [each.model_dump(exclude_defaults=True) for each in every]
        FIGURES.write_text(json.dumps(content, indent=1) + "\n")
    figures.cache_clear()
    PAGE.write_text(written())


def computed(figure: Figure) -> Figure:
    """The figure with what the planner computes for it now."""
    import os

    os.environ["JAX_PLATFORMS"] = "cpu"
    from apps.plan.llm.planner import Workload as StepWorkload
    from apps.plan.simulation.compiled import compile_times
    from apps.plan.simulation.requests import drawn, length
    from apps.plan.workload.planning import Asked, engine_config, run, service
    from ray_configs.llm import LLMConfig

    fields: dict[str, Any] = {**figure.fields, "model": figure.model, "slice": figure.slice}
    config = LLMConfig(**fields, max_waiting=100_000, routers=1)
    assert config.slice is not None
    compiled, times = compile_times(StepWorkload(engine_config(config), config.slice))
    workload = drawn(length(figure.prompt), length(figure.answer), figure.requests, concurrency=figure.concurrency)

    def value(at_floor: bool) -> float:
        from dataclasses import replace

        there = service(config, compiled, replace(times, at_floor=at_floor), 1)
        served, _ = run(there, Asked(workload))
        found = {"tokens/s": served.tokens_per_s, "requests/s": served.requests_per_s}
        assert served.tpot is not None
        return found.get(figure.unit, served.tpot.mean * 1e3)

    update = {"estimate": round(value(False), 3), "floor": round(value(True), 3)}
    return figure.model_copy(update=update | {"compiler": f"jax {version('jax')}, libtpu {version('libtpu')}"})


def written() -> str:
    """The page."""
    known = [figure for figure in figures() if figure.estimate is not None]
    lines = [
        "# Calibration",
        "",
        "<!-- Written by `python -m tools.calibrate --page`. -->",
        "",
        "Nothing here was measured by this project: it has no TPU. These are figures that others have published, each",
        "run as a workload through `podslice plan`, with the programs that the TPU compiler makes of this engine. The",
        "ratio says how many times as long their run took as the estimate: theirs is another engine, so it holds what",
        "theirs does worse or better, too.",
        "",
        "`podslice plan` multiplies its estimates for a workload by the median of a generation's ratios, or of all",
        "where there are fewer than three. Four in five figures lie within the spread, over that median: take a",
        "corrected figure for as sure as that.",
        "",
        "| Generation | Figures | Median ratio | Spread |",
        "|---|---|---|---|",
        *(_row(generation) for generation in sorted({figure.slice.partition(":")[0] for figure in known})),
        _row(None),
        "",
        "| Figure | Whose | Slice | Published | Estimate | Floor | Ratio | Over the floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for figure in known:
        lines.append(
            f"| {figure.name} | {figure.system} | {figure.slice} | {figure.published:g} {figure.unit} "
            f"| {figure.estimate:,.4g} | {figure.floor:,.4g} | {figure.ratio:.2f} | {figure.over_floor:.2f} |"
        )
    lines += ["", "Where they are from, and what the source does not say:", ""]
    sources: dict[str, list[str]] = {}
    for figure in known:
        sources.setdefault(f"{figure.system}: {figure.source}", []).append(figure.assumed)
    for source, assumed in sources.items():
        said = sorted({each for each in assumed if each})
        lines.append(f"- {source}{'; assumed: ' + '; '.join(said) if said else ''}.")
    compilers = sorted({figure.compiler for figure in known})
    lines += ["", f"Compiled with {' and '.join(compilers)}.", ""]
    return "\n".join(lines)


def _row(generation: str | None) -> str:
    low, high = spread(generation)
    own = [figure for figure in of_generation(None) if figure.slice.partition(":")[0] == generation]
    count = len(own) if generation else len(of_generation(None))
    name = generation or "all"
    return f"| {name} | {count} | {correction(generation):.2f} | {low:.2f} to {high:.2f} |"


if __name__ == "__main__":
    app()
