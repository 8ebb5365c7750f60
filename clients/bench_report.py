"""What bench.py found: figures of each run, medians over repeats, a table for people and JSON for programs."""

import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from bench_stream import Row
from rich import box
from rich.console import Console
from rich.table import Table

LATE_MS = 50.0  # open-loop sends later than this say that the client could not keep up
BUSY_CLIENT = 0.7  # of one core

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Level:
    concurrency: int | None = None
    rate: float | None = None  # requests/s

    def __str__(self) -> str:
        return f"{self.concurrency}" if self.rate is None else f"{self.rate:g}/s"


@dataclass
class Run:
    """All of the work, once, at one level."""

    level: Level
    repeat: int
    planned: int  # requests
    begun: float = 0.0  # perf_counter, s
    wall_s: float = 0.0
    sent: int = 0
    rows: list[Row] = field(default_factory=list)
    usage: Figures = field(default_factory=dict)  # CPU shares and memory

    @property
    def good(self) -> list[Row]:
        return [row for row in self.rows if not row.error]


def figures(run: Run) -> Figures:
    """One run in numbers; None where nothing was measured. Units are in the names."""
    good, wall_s = run.good, run.wall_s or float("inf")
    inputs = [row.prompt_tokens for row in good]
    result: Figures = {
        "wall_s": run.wall_s,
        "requests_per_s": len(good) / wall_s,
        "input_tokens_per_s": None if None in inputs else sum(inputs) / wall_s,
        "output_tokens_per_s": sum(row.output_tokens for row in good) / wall_s,
    }
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "max_gap_ms"):
        values = [value for row in good if (value := getattr(row, name)) is not None]
        result |= {f"{name}_p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    return result | run.usage


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Linear between the two nearest ranks, as numpy's default."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def medians(repeats: list[Figures]) -> Figures:
    """The median of each figure over the runs that have it."""
    result: Figures = {}
    for name in {name: None for repeat in repeats for name in repeat}:
        values = [value for repeat in repeats if (value := repeat.get(name)) is not None]
        result[name] = statistics.median(values) if values else None
    return result


def errors(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """{kind: {count, first message}}"""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.error:
            found.setdefault(row.error, {"count": 0, "first": f"request {row.id}: {row.message}"})["count"] += 1
    return found


def by_level(runs: list[Run]) -> list[tuple[Level, list[Run]]]:
    return [(level, list(group)) for level, group in groupby(runs, key=lambda run: run.level)]


# ---- for people


def print_report(runs: list[Run]) -> None:
    """The table, the errors by kind and what to know before believing the figures."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table(runs))
    for level, group in by_level(runs):
        rows = [row for run in group for row in run.rows]
        for kind, error in errors(rows).items():
            line = f"level {level}: {error['count']} x {kind}; first: {error['first']}"
            console.print(line, markup=False, soft_wrap=True)
        for note in notes(group):
            console.print(f"level {level}: {note}", markup=False, soft_wrap=True)


TABLE = (  # (title, figure)
    ("requests/s", "requests_per_s"),
    ("input tokens/s", "input_tokens_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
    ("TTFT ms p50", "ttft_ms_p50"),
    ("p95", "ttft_ms_p95"),
    ("p99", "ttft_ms_p99"),
    ("time per output token ms p50", "tpot_ms_p50"),
    ("p95", "tpot_ms_p95"),
    ("p99", "tpot_ms_p99"),
    ("end to end ms p50", "e2e_ms_p50"),
    ("client cpu", "client_cpu"),
    ("server cpu", "server_cpu"),
    ("other cpu", "other_cpu"),
    ("server peak RSS MiB", "server_peak_rss_mib"),
)


def table(runs: list[Run]) -> Table:
    """A column for each level: this fits a terminal of 80 characters."""
    groups = by_level(runs)
    found = [medians([figures(run) for run in group]) for _, group in groups]
    repeats = max(run.repeat for run in runs) + 1
    result = Table(title=f"medians of {repeats} repeats" if repeats > 1 else None, box=box.SIMPLE_HEAD)
    result.add_column("requests in flight" if runs[0].level.concurrency else "requests/s sent", justify="right")
    for level, _ in groups:
        result.add_column(str(level), justify="right", no_wrap=True)
    result.add_row("requests", *(str(sum(len(run.rows) for run in group)) for _, group in groups))
    result.add_row("errors", *(str(sum(len(run.rows) - len(run.good) for run in group)) for _, group in groups))
    for title, name in TABLE:
        if any(name in level for level in found):
            result.add_row(title, *(show(level.get(name)) for level in found))
    return result


def show(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def notes(group: list[Run]) -> list[str]:
    """What makes a level's figures other than they seem."""
    good = [row for run in group for row in run.good]
    found = []
    dropped = sum(run.sent - len(run.rows) for run in group)
    unsent = sum(run.planned - run.sent for run in group)
    if dropped or unsent:
        found.append(f"interrupted: answers unfinished and not counted: {dropped}, requests not sent: {unsent}")
    early = sum(1 for row in good if row.max_tokens and row.output_tokens < row.max_tokens)
    if early:
        found.append(
            f"{early} of {len(good)} answers ended before their max_tokens (--ignore-eos makes all work equal)"
        )
    cached = sum(row.cached_tokens or 0 for row in good)
    if cached:
        found.append(f"{cached} of {sum(row.prompt_tokens or 0 for row in good)} input tokens came from a prefix cache")
    late = percentile((row.late_ms for row in good), 95) or 0.0
    if late > LATE_MS:
        found.append(f"one send in 20 was {late:.0f} ms late or more: this client cannot keep up with the rate")
    busy = max((run.usage.get("client_cpu") or 0.0) for run in group)
    if busy > BUSY_CLIENT:
        found.append(f"this client used {busy:.2f} of a core: the figures may be its limit, not the server's")
    return found


# ---- for programs


def write_json(path: Path, options: dict[str, Any], runs: list[Run], interrupted: bool) -> None:
    """Every figure and every request; units are in the names. Raises OSError."""
    report = {
        "program": "podslice bench",
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "interrupted": interrupted,
        "options": options,
        "levels": [level_json(level, group) for level, group in by_level(runs)],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def level_json(level: Level, group: list[Run]) -> dict[str, Any]:
    runs = [(run, figures(run)) for run in group]
    return {
        **asdict(level),
        "medians": medians([found for _, found in runs]),
        "repeats": [
            {
                "requests": len(run.rows),
                "errors": errors(run.rows),
                "unfinished": run.sent - len(run.rows),
                "unsent": run.planned - run.sent,
                **found,
                "rows": [asdict(row) for row in run.rows],
            }
            for run, found in runs
        ],
    }
