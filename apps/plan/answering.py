"""From the options of `podslice plan` to a plan, and how it is shown."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.loading import ConfigError, application, assignments, changed
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import GENERATIONS

Planned = LLMConfig | StableDiffusionConfig
Options = Mapping[str, Any]
"""The options that were given, by their names with underscores."""
Show = Callable[[Any, Any], None]
"""Prints a plan on a console."""

ALIVE_S = 15.0
"""Between two signs of life."""
LENGTHS = ("context", "prompt")
BOUNDS = ("generation", "most_chips", "ms_per_token")
PICTURES = ("model", "size", "steps", "pictures")
LOADS = (
    *("trace", "prompt_tokens", "output_tokens", "shared_prefix", "rate", "concurrency", "requests"),
    *("replicas", "slo", "seed", "chart"),
)


def answer(source: str, options: Options, kinds: Sequence[type[Planned]]) -> tuple[BaseModel, Show]:
    """The plan that the options ask for.

    Args:
        source: a module or file of configs, or the JSON of a workload's plan, whose options hold where none is given.

    Raises:
        ConfigError: which option, and why.
    """
    if source.endswith(".json"):
        source, options = _repeated(Path(source), options)
    config = application(source, *kinds, name=options.get("name"))
    loaded, searches = any(name in options for name in LOADS), "search" in options
    if isinstance(config, StableDiffusionConfig):
        _refuse(options, (*LENGTHS, *BOUNDS, *LOADS, "whole", "search", "price"), "not for Stable Diffusion")
    else:
        _refuse(options, PICTURES, "not for a language model, whose fields --set changes")
        _refuse(options, () if searches else BOUNDS, "only with --search")
        _refuse(options, () if searches or loaded else ("price",), "only with --search, or for a workload")
    if loaded:
        _refuse(options, (*LENGTHS, "ms_per_token"), "not for a workload: its lengths and --slo say it")
    config = _changed(config, source, options)
    if config.slice is None and (searches or not loaded):
        raise ConfigError(f"{source} runs on CPUs: it has no slice to plan for. Name one, such as --slice v5e:2x4:8t")
    _keep_off_tpus()
    if isinstance(config, LLMConfig) and config.engine == "vllm":
        return _other_engine(config, options)
    if isinstance(config, StableDiffusionConfig):
        return _plan_images(config, _counts(options.get("pictures", "1,2,4,8")))
    return _plan_workload(config, source, options) if loaded else _plan_llm(config, options)


def _changed(config: Planned, source: str, options: Options) -> Planned:
    """The config with the changes of --set and the other options."""
    settable = EngineConfig if isinstance(config, LLMConfig) else StableDiffusionConfig
    fields = {"slice": "slice", "model": "model", "sizes": "size", "num_inference_steps": "steps"}
    given = {field: options[name] for field, name in fields.items() if name in options}
    return changed(config, assignments(options.get("set", []), settable) | given, source)


def _repeated(path: Path, options: Options) -> tuple[str, Options]:
    """The config and options of a plan that was written as JSON."""
    from apps.plan.workload import traces

    try:
        asked = json.loads(path.read_text())["asked"]
        known = {name: Path(value) if name in ("trace", "chart") else value for name, value in asked["options"].items()}
        if (digest := asked["trace"]) and digest != traces.digest(known["trace"]):
            raise ConfigError(f"{path}: {known['trace']} is not the trace that it was of: its content differs")
        return asked["config"], {**known, **options}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no plan of a workload: {type(error).__name__}: {error}") from error


def _criteria(options: Options) -> tuple[Any, ...]:
    """The arguments of `apps.plan.llm.search.Criteria`."""
    prices = _prices(options.get("price", []))
    generations = tuple(options.get("generation") or prices or GENERATIONS)
    return generations, options.get("most_chips", 64), options.get("ms_per_token"), prices


def _plan_llm(config: LLMConfig, options: Options) -> tuple[BaseModel, Show]:
    from apps.arrays.model_folder import CheckpointError
    from apps.llm.engine.model.rope import UnsupportedModel
    from apps.plan.llm import planner, search, text
    from apps.plan.topology import NoCompiler

    engine = EngineConfig(**{field: getattr(config, field) for field in EngineConfig.model_fields})
    assert config.slice is not None
    lengths = options.get("prompt"), options.get("context")
    workload = planner.Workload(engine, config.slice, *lengths, whole="whole" in options)
    try:
        if "search" not in options:
            with _alive(f"compiling the programs of {config.model} for {config.slice}"):
                return planner.plan(workload), text.show
        with _alive(f"looking for a slice for {config.model}") as tell:
            return search.search(workload, search.Criteria(*_criteria(options)), tell), text.show_search
    except (CheckpointError, UnsupportedModel, NoCompiler, ValueError) as error:
        raise ConfigError(str(error)) from error


def _other_engine(config: LLMConfig, options: Options) -> tuple[BaseModel, Show]:
    from apps.arrays.model_folder import CheckpointError
    from apps.plan import other_engine

    _refuse(options, (*LENGTHS, *LOADS, *BOUNDS, "whole", "search", "price"), other_engine.NOT_PLANNED)
    if config.slice is None:
        raise ConfigError(f"it runs on CPUs: {other_engine.NOT_PLANNED}. Name a slice, such as --slice v5e:2x4:8t")
    try:
        return other_engine.plan(config), other_engine.show
    except (CheckpointError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _plan_workload(config: LLMConfig, source: str, options: Options) -> tuple[BaseModel, Show]:
    from apps.arrays.model_folder import CheckpointError
    from apps.llm.engine.model.rope import UnsupportedModel
    from apps.plan.llm.search import Criteria
    from apps.plan.topology import NoCompiler
    from apps.plan.workload import asking, chart, planning, text

    asked = asking.of_options(source, options, _prices(options.get("price", [])))
    if "search" in options:
        if asked.slo is None:
            raise ConfigError("--search for a workload needs --slo: what the slices are to keep to")
        _refuse(options, ("replicas", "chart"), "not with --search, which finds the number of replicas")
    try:
        with _alive(f"planning a workload of {len(asked.workload.arrivals):,} requests") as tell:
            if "search" in options:
                return planning.search_workload(config, asked, Criteria(*_criteria(options)), tell), text.show_search
            made = (planning.plan_measured if config.slice is None else planning.plan_workload)(config, asked, tell)
            if "chart" in options:
                chart.write(options["chart"], made)
            return made, text.show
    except (CheckpointError, UnsupportedModel, NoCompiler, ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def _plan_images(config: StableDiffusionConfig, counts: tuple[int, ...]) -> tuple[BaseModel, Show]:
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


def _refuse(options: Options, names: Sequence[str], why: str) -> None:
    if given := [f"--{name.replace('_', '-')}" for name in names if name in options]:
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
