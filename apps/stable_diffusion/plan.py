"""How fast can a slice make pictures, and do they fit? Without a TPU: `python -m apps.stable_diffusion.plan CONFIG`."""

import os
import sys
from typing import Annotated

import typer

from ray_configs.choosing import application, changed
from ray_configs.loading import ConfigError
from ray_configs.stable_diffusion import StableDiffusionConfig

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def pictures_config(source: str, name: str | None, changes: dict[str, str]) -> StableDiffusionConfig:
    """The config's one Stable Diffusion application, or that of that name, with some fields changed.

    Raises:
        ConfigError: there is none, or several and no name; or it runs on no slice.
    """
    config = changed(application(source, StableDiffusionConfig, name), changes, source)
    if config.slice is None:
        raise ConfigError(f"{source} runs on CPUs: it has no slice to plan for. Name one, such as --slice v5e:2x2")
    return config


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise ConfigError(f"--pictures {text!r} must be numbers of at least 1, such as 1,2,4,8")
    return counts


@app.command()
def main(
    config: Annotated[str, typer.Argument(help="A module or file that defines a Service, as for python -m kuberay.")],
    name: Annotated[str | None, typer.Option("--app", help="Which application, where there are several.")] = None,
    slice: Annotated[str | None, typer.Option(help="Another slice than the config's, such as v6e:2x2.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the config's.")] = None,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT; default: the config's first.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps; default: the config's.")] = None,
    pictures: Annotated[str, typer.Option(help="At once on each chip; each number is compiled.")] = "1,2,4,8",
    json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
) -> None:
    """Compile CONFIG's denoising step, decoder and text encoder with XLA's TPU compiler for its slice: minutes each."""
    try:
        given = {"slice": slice, "model": model, "sizes": size, "num_inference_steps": steps}
        wanted = pictures_config(config, name, {field: value for field, value in given.items() if value is not None})
        _run(wanted, _counts(pictures), json)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _run(config: StableDiffusionConfig, pictures: tuple[int, ...], json: bool) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # even where there is a TPU: planning must not take it from who uses it
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Imported here: the environment must be set before JAX starts.
    from rich.console import Console

    from apps.plan.stable_diffusion import planner, report
    from apps.plan.topology import NoCompiler
    from apps.stable_diffusion.engine.model.checkpoint import CheckpointError

    wanted = planner.Wanted(config, config.slice, config.sizes[0], pictures)
    try:
        found = planner.plan(wanted, lambda line: typer.echo(line, err=True))
    except (CheckpointError, NoCompiler, ValueError) as error:
        raise ConfigError(str(error)) from error
    if json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        report.show(found, Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    app()
