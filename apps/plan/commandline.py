"""The command `python -m apps.plan CONFIG`: whether a config fits its slice, and how fast it can be."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.loading import ConfigError, application, assignments, changed
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import GENERATIONS

Planned = LLMConfig | StableDiffusionConfig
Show = Callable[[Any, Any], None]
"""Prints a plan on a console."""

ALIVE_S = 15.0
"""Between two signs of life."""
LANGUAGE = "language model"
SEARCH = "language model, with --search"
PICTURES = "Stable Diffusion"
WORKLOAD = "language model, for a workload"


def _changed(
    config: Planned, pairs: Sequence[str], options: Mapping[str, Any], source: str, sliced: bool = True
) -> Planned:
    """The config with the changes of --set and the other options. `sliced`: it must have a slice then."""
    settable = EngineConfig if isinstance(config, LLMConfig) else StableDiffusionConfig
    given = {field: value for field, value in options.items() if value is not None}
    config = changed(config, assignments(pairs, settable) | given, source)
    if sliced and config.slice is None:
        raise ConfigError(f"{source} runs on CPUs: it has no slice to plan for. Name one, such as --slice v5e:2x4:8t")
    return config


def command(*kinds: type[Planned]) -> typer.Typer:
    """Builds the command for applications of these kinds."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    def option(text: str, panel: str | None = None, name: str | None = None) -> Any:
        return typer.Option(*([name] if name else []), help=text, rich_help_panel=panel)

    @app.command()
    def main(
        config: Annotated[
            str, typer.Argument(metavar="CONFIG", help="A module or file that defines a Service, as for kuberay.")
        ],
        name: Annotated[str | None, option("Which application, where there are several.", name="--app")] = None,
        slice: Annotated[str | None, option("Another slice than the config's, such as v6e:2x4:8t.")] = None,
        set: Annotated[list[str] | None, option("Change a field: --set quantize_weights=int8")] = None,
        json: Annotated[bool, option("Write JSON instead of tables.", name="--json")] = False,
        context: Annotated[int | None, option("Tokens in each sequence as it decodes.", LANGUAGE)] = None,
        prompt: Annotated[int | None, option("Tokens of a prompt, for its time to first token.", LANGUAGE)] = None,
        whole: Annotated[bool, option("Compile all layers, not a few to extrapolate.", LANGUAGE, "--whole")] = False,
        search: Annotated[bool, option("Find the cheapest slice instead.", LANGUAGE, "--search")] = False,
        ms_per_token: Annotated[float | None, option("The longest time per token.", SEARCH)] = None,
        generation: Annotated[list[str] | None, option("Look only at this generation.", SEARCH)] = None,
        most_chips: Annotated[int | None, option("Only slices of at most this many chips (64).", SEARCH)] = None,
        price: Annotated[list[str] | None, option("Dollars a chip-hour: v5e=1.20", SEARCH)] = None,
        trace: Annotated[
            Path | None, option("Recorded requests, as Mooncake, Bailian, AIPerf or Azure write them.", WORKLOAD)
        ] = None,
        prompt_tokens: Annotated[
            str | None, option("Or their prompts: 512, 32:512 (uniform), normal:MEAN:DEVIATION, ...", WORKLOAD)
        ] = None,
        output_tokens: Annotated[str | None, option("And their answers, likewise.", WORKLOAD)] = None,
        shared_prefix: Annotated[int | None, option("Tokens that all prompts begin with.", WORKLOAD)] = None,
        rate: Annotated[float | None, option("Requests a second; with --trace, in place of its own.", WORKLOAD)] = None,
        concurrency: Annotated[int | None, option("Or so many at a time.", WORKLOAD)] = None,
        requests: Annotated[int | None, option("How many, or the first ones of a trace (2000).", WORKLOAD)] = None,
        replicas: Annotated[int | None, option("Default: the config's fewest.", WORKLOAD)] = None,
        slo: Annotated[str | None, option("What to keep to: ttft=2s,tpot=40ms,share=0.99", WORKLOAD)] = None,
        seed: Annotated[int | None, option("Of requests that are drawn (0).", WORKLOAD)] = None,
        chart: Annotated[Path | None, option("Draw the run: an SVG file.", WORKLOAD)] = None,
        model: Annotated[str | None, option("Another model than the config's.", PICTURES)] = None,
        size: Annotated[str | None, option("WIDTHxHEIGHT; default: the config's first.", PICTURES)] = None,
        steps: Annotated[int | None, option("Denoising steps; default: the config's.", PICTURES)] = None,
        pictures: Annotated[str | None, option("At once on each chip, each compiled (1,2,4,8).", PICTURES)] = None,
    ) -> None:
        """Compile CONFIG's programs with XLA's TPU compiler for its slice, and say what fits and how fast it can be."""
        lengths = {"--context": context, "--prompt": prompt}
        bounds = {"--generation": generation, "--most-chips": most_chips, "--ms-per-token": ms_per_token}
        images = {"--model": model, "--size": size, "--steps": steps, "--pictures": pictures}
        loads = {"--trace": trace, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens, "--rate": rate}
        loads |= {"--shared-prefix": shared_prefix, "--concurrency": concurrency, "--requests": requests}
        loads |= {"--replicas": replicas, "--slo": slo, "--seed": seed, "--chart": chart}
        loaded = any(value is not None for value in loads.values())
        changes = {"slice": slice, "model": model, "sizes": size, "num_inference_steps": steps}
        try:
            planned = application(config, *kinds, name=name)
            if isinstance(planned, StableDiffusionConfig):
                others = {"--whole": whole, "--search": search, "--price": price}
                _refuse(lengths | bounds | loads | others, "not for Stable Diffusion")
            else:
                _refuse(images, "not for a language model, whose fields --set changes")
                _refuse({} if search else bounds, "only with --search")
                _refuse({} if search or loaded else {"--price": price}, "only with --search, or for a workload")
            if loaded:
                _refuse(lengths | {"--ms-per-token": ms_per_token}, "not for a workload: its lengths and --slo say it")
            planned = _changed(planned, set or [], changes, config, sliced=not loaded or search)
            if isinstance(planned, StableDiffusionConfig):
                made, show = _plan_images(planned, _counts(pictures or "1,2,4,8"))
            else:
                dollars = _prices(price or [])
                criteria = (tuple(generation or dollars or GENERATIONS), most_chips or 64, ms_per_token, dollars)
                if loaded:
                    made, show = _plan_workload(planned, loads, criteria if search else None, dollars)
                else:
                    made, show = _plan_llm(planned, (prompt, context, whole), criteria if search else None)
        except ConfigError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        if json:
            typer.echo(made.model_dump_json(indent=2))
        else:
            from rich.console import Console

            show(made, Console(width=None if sys.stdout.isatty() else 120))

    return app


def _plan_llm(config: LLMConfig, lengths: tuple[Any, ...], criteria: tuple[Any, ...] | None) -> tuple[BaseModel, Show]:
    _keep_off_tpus()
    from apps.arrays.model_folder import CheckpointError
    from apps.llm.engine.model.rope import UnsupportedModel
    from apps.plan.llm import planner, search, text
    from apps.plan.topology import NoCompiler

    engine = EngineConfig(**{field: getattr(config, field) for field in EngineConfig.model_fields})
    assert config.slice is not None
    workload = planner.Workload(engine, config.slice, *lengths)
    try:
        if criteria is None:
            with _alive(f"compiling the programs of {config.model} for {config.slice}"):
                return planner.plan(workload), text.show
        with _alive(f"looking for a slice for {config.model}") as tell:
            return search.search(workload, search.Criteria(*criteria), tell), text.show_search
    except (CheckpointError, UnsupportedModel, NoCompiler, ValueError) as error:
        raise ConfigError(str(error)) from error


def _plan_workload(
    config: LLMConfig, loads: Mapping[str, Any], criteria: tuple[Any, ...] | None, prices: Mapping[str, float]
) -> tuple[BaseModel, Show]:
    _keep_off_tpus()
    from apps.arrays.model_folder import CheckpointError
    from apps.llm.engine.model.rope import UnsupportedModel
    from apps.plan.llm.search import Criteria
    from apps.plan.topology import NoCompiler
    from apps.plan.workload import asking, chart, planning, text

    asked = asking.of_options(loads, prices)
    if criteria is not None and asked.slo is None:
        raise ConfigError("--search for a workload needs --slo: what the slices are to keep to")
    if criteria is not None and (asked.replicas or asked.chart):
        raise ConfigError("--replicas, --chart: not with --search, which finds the number of replicas")
    try:
        with _alive(f"planning a workload of {len(asked.workload.arrivals):,} requests") as tell:
            if criteria is not None:
                return planning.search_workload(config, asked, Criteria(*criteria), tell), text.show_search
            made = (planning.plan_measured if config.slice is None else planning.plan_workload)(config, asked, tell)
            if asked.chart is not None:
                chart.write(asked.chart, made)
            return made, text.show
    except (CheckpointError, UnsupportedModel, NoCompiler, ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def _plan_images(config: StableDiffusionConfig, counts: tuple[int, ...]) -> tuple[BaseModel, Show]:
    _keep_off_tpus()
    from apps.arrays.model_folder import CheckpointError
    from apps.plan.stable_diffusion import planner, report
    from apps.plan.topology import NoCompiler

    assert config.slice is not None
    workload = planner.PictureWorkload(config, config.slice, config.sizes[0], counts)
    try:
        with _alive(f"compiling the programs of {config.model} for {config.slice}") as tell:
            return planner.plan(workload, tell), report.show
    except (CheckpointError, NoCompiler, ValueError) as error:
        raise ConfigError(str(error)) from error


def _keep_off_tpus() -> None:
    """Restricts JAX to the CPU, so that planning does not take a TPU that is in use. Call it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextmanager
def _alive(what: str) -> Iterator[Callable[[str], None]]:
    """Says on standard error what takes a minute or more: a line at once, and one now and then while it lasts.

    Yields a function that says which part of it begins.
    """
    done, began = threading.Event(), time.monotonic()
    _tell(f"{what}: a minute or more")

    def begin(part: str) -> None:
        nonlocal what
        what = part
        _tell(part)

    def say() -> None:
        while not done.wait(ALIVE_S):
            _tell(f"{what}: {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=say, daemon=True)
    teller.start()
    try:
        yield begin
    finally:
        done.set()
        teller.join()


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    if given := [name for name, value in options.items() if value is not None and value is not False and value != []]:
        raise ConfigError(f"{', '.join(given)}: {why}")


def _prices(pairs: Sequence[str]) -> dict[str, float]:
    prices = {}
    for pair in pairs:
        generation, _, value = pair.partition("=")
        try:
            prices[generation] = float(value)
        except ValueError:
            raise ConfigError(f"--price {pair!r} must be GENERATION=DOLLARS for a chip and hour") from None
    return prices


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise ConfigError(f"--pictures {text!r} must be numbers of at least 1, such as 1,2,4,8")
    return counts


app = command(LLMConfig, StableDiffusionConfig)
