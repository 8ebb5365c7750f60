"""Does a config fit its slice, and how fast can it be? Answered without a TPU: `python -m apps.llm.plan CONFIG`."""

import os
import sys
from typing import Annotated, Any

import typer

from ray_configs.choosing import application, assignments, changed
from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.loading import ConfigError
from ray_configs.tpu import GENERATIONS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def language_model(source: str, name: str | None, changes: dict[str, Any]) -> LLMConfig:
    """The config's one language model, or the application of that name, with some fields changed.

    Raises:
        ConfigError: there is none, or several and no name; or it runs on no slice.
    """
    config = changed(application(source, LLMConfig, name), changes, source)
    if config.slice is None:
        raise ConfigError(f"{source} runs on CPUs: it has no slice to plan for. Name one, such as --slice v5e:2x4:8t")
    return config


def _prices(pairs: list[str]) -> dict[str, float]:
    prices = {}
    for pair in pairs:
        generation, _, value = pair.partition("=")
        try:
            prices[generation] = float(value)
        except ValueError:
            raise ConfigError(f"--price {pair!r} must be GENERATION=DOLLARS for a chip and hour") from None
    return prices


@app.command()
def main(
    config: Annotated[str, typer.Argument(help="A module or file that defines a Service, as for python -m kuberay.")],
    name: Annotated[str | None, typer.Option("--app", help="Which application, where there are several.")] = None,
    slice: Annotated[str | None, typer.Option(help="Another slice than the config's, such as v6e:2x4:8t.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="Change a field: --set quantize_weights=int8")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens in each sequence as it decodes.")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of a prompt, for the time to its first token.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Compile all layers; a few and extrapolate else.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
    search: Annotated[bool, typer.Option("--search", help="Find the cheapest slice instead.")] = False,
    ms_per_token: Annotated[float | None, typer.Option(help="With --search: the longest time per token.")] = None,
    generation: Annotated[list[str] | None, typer.Option(help="With --search: look only at this generation.")] = None,
    most_chips: Annotated[int, typer.Option(help="With --search: slices of at most so many chips.")] = 64,
    price: Annotated[list[str] | None, typer.Option(help="With --search: dollars a chip-hour, v5e=1.20")] = None,
) -> None:
    """Compile CONFIG's steps with XLA's TPU compiler for its slice, and say what fits and how fast it can be."""
    try:
        changes = assignments(set or [], EngineConfig) | ({} if slice is None else {"slice": slice})
        model = language_model(config, name, changes)
        _run(model, json, context, prompt, whole, search, ms_per_token, generation, most_chips, _prices(price or []))
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _run(
    model: LLMConfig,
    json: bool,
    context: int | None,
    prompt: int | None,
    whole: bool,
    search: bool,
    ms_per_token: float | None,
    generation: list[str] | None,
    most_chips: int,
    prices: dict[str, float],
) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # even where there is a TPU: planning must not take it from who uses it
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Imported here: apps.llm needs no JAX, and the environment must be set before it starts.
    from rich.console import Console

    from apps.llm.engine.model.architecture import UnsupportedModel
    from apps.llm.engine.model.checkpoint import CheckpointError
    from apps.plan.llm import planner, text
    from apps.plan.llm import search as searching
    from apps.plan.topology import NoCompiler

    engine = EngineConfig(**{field: getattr(model, field) for field in EngineConfig.model_fields})
    wanted = planner.Wanted(engine, model.slice, prompt, context, whole)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        if search:
            limits = searching.Limits(tuple(generation or (prices or GENERATIONS)), most_chips, ms_per_token, prices)
            found = searching.search(wanted, limits, lambda line: typer.echo(line, err=True))
            shown = lambda: text.show_search(found, console)  # noqa: E731
        else:
            found = planner.plan(wanted)
            shown = lambda: text.show(found, console)  # noqa: E731
    except (CheckpointError, UnsupportedModel, NoCompiler, ValueError) as error:
        raise ConfigError(str(error)) from error
    if json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        shown()


if __name__ == "__main__":
    app()
