"""A workload from a command's options."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from apps.plan.simulation import requests
from apps.plan.simulation.requests import Workload
from apps.plan.workload import traces
from apps.plan.workload.answer import Slo
from apps.plan.workload.planning import Asked
from ray_configs.loading import ConfigError

REQUESTS = 2000
"""That are drawn where their number is not given."""


def of_options(options: Mapping[str, Any], prices: Mapping[str, float]) -> Asked:
    """What `podslice plan` is asked by its options, by their names.

    Raises:
        ConfigError: which option, and why.
    """
    for name in ("--rate", "--concurrency", "--requests", "--replicas", "--shared-prefix"):
        value = options[name]
        if value is not None and not (0 < value < 1e12):
            raise ConfigError(f"{name} {value} must be greater than 0")
    if options["--rate"] is not None and options["--concurrency"] is not None:
        raise ConfigError("--rate and --concurrency: give one of them")
    slo = None if options["--slo"] is None else _parsed("--slo", Slo.parse, options["--slo"])
    workload = _recorded(options) if options["--trace"] is not None else _drawn(options)
    chart: Path | None = options["--chart"]
    if chart is not None and not chart.absolute().parent.is_dir():
        raise ConfigError(f"--chart {chart}: there is no folder {chart.parent}")
    return Asked(workload, options["--replicas"], slo, prices, chart)


def _recorded(options: Mapping[str, Any]) -> Workload:
    drawn = [name for name in ("--prompt-tokens", "--output-tokens", "--shared-prefix", "--seed") if options[name]]
    if drawn:
        raise ConfigError(f"{', '.join(drawn)}: not with --trace, which has its own requests")
    try:
        workload = traces.read(options["--trace"])
    except (ValueError, OSError) as error:
        raise ConfigError(f"--trace: {error}") from error
    arrivals = list(workload.arrivals)[: options["--requests"]]
    source, rate = workload.source, options["--rate"]
    if rate is not None:
        seconds = arrivals[-1].at_s
        if not seconds:
            raise ConfigError("--rate: all requests of this trace come at once, so it has no rate to change")
        factor = rate * seconds / max(1, len(arrivals) - 1)
        arrivals = [replace(arrival, at_s=arrival.at_s / factor) for arrival in arrivals]
        source += f", {factor:.3g} times as fast"
    if options["--concurrency"] is not None:
        source += f", {options['--concurrency']} at a time"
    return Workload(arrivals, options["--concurrency"], source)


def _drawn(options: Mapping[str, Any]) -> Workload:
    if missing := [name for name in ("--prompt-tokens", "--output-tokens") if options[name] is None]:
        raise ConfigError(f"a workload needs --trace FILE, or {' and '.join(missing)} (512, 32:512, ...)")
    if options["--rate"] is None and options["--concurrency"] is None:
        raise ConfigError("a workload needs --rate (requests a second) or --concurrency (so many at a time)")
    prompt, answer = (_parsed(name, requests.length, options[name]) for name in ("--prompt-tokens", "--output-tokens"))
    count, shared = options["--requests"] or REQUESTS, options["--shared-prefix"] or 0
    drawn = requests.drawn(
        prompt, answer, count, options["--rate"], options["--concurrency"], shared, options["--seed"] or 0
    )
    how = f"{options['--rate']:g} a second" if options["--rate"] else f"{options['--concurrency']} at a time"
    prefix = f"{shared} + " if shared else ""
    return replace(drawn, source=f"{prefix}{options['--prompt-tokens']} in and {options['--output-tokens']} out, {how}")


def _parsed(name: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
