"""A workload from a command's options."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from apps.plan.simulation import requests
from apps.plan.simulation.requests import Trace
from apps.plan.workload import traces
from apps.plan.workload.answer import Slo
from apps.plan.workload.planning import Again, Asked
from ray_configs.loading import ConfigError

REQUESTS = 2000
"""That are drawn where their number is not given."""


def of_options(config: str, options: Mapping[str, Any], prices: Mapping[str, float]) -> Asked:
    """What `podslice plan` is asked by the options that are given, by their names with underscores.

    Args:
        config: where the config is from.

    Raises:
        ConfigError: which option, and why.
    """
    for name in ("rate", "concurrency", "requests", "replicas", "shared_prefix"):
        if name in options and not (0 < options[name] < 1e12):
            raise ConfigError(f"--{name.replace('_', '-')} {options[name]} must be greater than 0")
    if "rate" in options and "concurrency" in options:
        raise ConfigError("--rate and --concurrency: give one of them")
    slo = _parsed("--slo", Slo.parse, options["slo"]) if "slo" in options else None
    workload = _recorded(options) if "trace" in options else _drawn(options)
    if "chart" in options and not (folder := options["chart"].absolute().parent).is_dir():
        raise ConfigError(f"--chart {options['chart']}: there is no folder {folder}")
    kept = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    digest = traces.digest(options["trace"]) if "trace" in options else ""
    again = Again(config=config, options=kept, trace=digest, versions=_versions())
    return Asked(workload, options.get("replicas"), slo, prices, again)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("podslice", "jax", "libtpu"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _recorded(options: Mapping[str, Any]) -> Trace:
    names = {"prompt_tokens": "--prompt-tokens", "output_tokens": "--output-tokens", "shared_prefix": "--shared-prefix"}
    if drawn := [shown for name, shown in {**names, "seed": "--seed"}.items() if name in options]:
        raise ConfigError(f"{', '.join(drawn)}: not with --trace, which has its own requests")
    try:
        workload = traces.read(options["trace"])
    except (ValueError, OSError) as error:
        raise ConfigError(f"--trace: {error}") from error
    arrivals = list(workload.arrivals)[: options.get("requests")]
    source, concurrency = workload.source, options.get("concurrency")
    if "rate" in options:
        seconds = arrivals[-1].at_s
        if not seconds:
            raise ConfigError("--rate: all requests of this trace come at once, so it has no rate to change")
        factor = options["rate"] * seconds / max(1, len(arrivals) - 1)
        arrivals = [replace(arrival, at_s=arrival.at_s / factor) for arrival in arrivals]
        source += f", {factor:.3g} times as fast"
    if concurrency is not None:
        source += f", {concurrency} at a time"
    return Trace(arrivals, concurrency, source)


def _drawn(options: Mapping[str, Any]) -> Trace:
    needed = {"prompt_tokens": "--prompt-tokens", "output_tokens": "--output-tokens"}
    if missing := [shown for name, shown in needed.items() if name not in options]:
        raise ConfigError(f"a workload needs --trace FILE, or {' and '.join(missing)} (512, 32:512, ...)")
    rate, concurrency, shared = options.get("rate"), options.get("concurrency"), options.get("shared_prefix", 0)
    if rate is None and concurrency is None:
        raise ConfigError("a workload needs --rate (requests a second) or --concurrency (so many at a time)")
    prompt, answer = (_parsed(shown, requests.length, options[name]) for name, shown in needed.items())
    count, seed = options.get("requests", REQUESTS), options.get("seed", 0)
    drawn = requests.drawn(prompt, answer, count, rate, concurrency, shared, seed)
    how = f"{concurrency} at a time" if rate is None else f"{rate:g} a second"
    prefix = f"{shared} + " if shared else ""
    return replace(drawn, source=f"{prefix}{options['prompt_tokens']} in and {options['output_tokens']} out, {how}")


def _parsed(name: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
