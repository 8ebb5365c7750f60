"""Draws a workload's run as an SVG: requests that run and wait, and the times to first tokens."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from apps.plan.workload.answer import spoken
from apps.plan.workload.planning import WorkloadPlan
from apps.plan.workload.text import asked, where

WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP = 860, 460, 70, 62, 150, 50
RUNNING, WAITING, MEDIAN, SLOWEST = "#2b6cb0", "#dd6b20", "#2f855a", "#c53030"


def write(path: Path, plan: WorkloadPlan) -> None:
    """Raises OSError where it cannot be written."""
    path.write_text(drawn(plan))


def drawn(plan: WorkloadPlan) -> str:
    """The SVG's text."""
    moments, seconds = plan.moments, plan.served.seconds
    title = f"{plan.model} {where(plan)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{LEFT}" y="40" fill="#555">{escape(asked(plan))}</text>',
    ]
    at = [moment.began for moment in moments]
    counts = {"running": (RUNNING, [moment.running for moment in moments])}
    counts["waiting"] = WAITING, [moment.waiting for moment in moments]
    parts += _panel(TOP, "requests", seconds, at, counts, "{:,.0f}".format)
    first = {"first token, p50": (MEDIAN, [moment.ttft_p50 for moment in moments])}
    first["p99"] = SLOWEST, [moment.ttft_p99 for moment in moments]
    parts += _panel(TOP + PANEL + GAP, "seconds", seconds, at, first, spoken)
    slo = plan.slo.ttft_s if plan.slo is not None else None
    verdict = "" if slo is None else f"; the SLO's first token: {spoken(slo)}"
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 10}" fill="#555">{escape(plan.served.binds + verdict)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    top: int,
    unit: str,
    seconds: float,
    at: Sequence[float],
    lines: Mapping[str, tuple[str, Sequence[float | None]]],
    written: Callable[[float], str],
) -> list[str]:
    """Axes, and a line for each of `lines`: its name, colour and values."""
    most = max((value for _, values in lines.values() for value in values if value is not None), default=0) or 1
    wide, bottom = WIDTH - LEFT - 20, top + PANEL

    def x(when: float) -> float:
        return LEFT + wide * when / seconds

    def y(value: float) -> float:
        return bottom - PANEL * value / most

    parts = [f'<path d="M{LEFT} {top}V{bottom}H{LEFT + wide}" fill="none" stroke="#999"/>']
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(share * most) + 4:.1f}" text-anchor="end">{written(share * most)}</text>'
        )
        parts.append(
            f'<text x="{x(share * seconds):.1f}" y="{bottom + 16}" text-anchor="middle">{share * seconds:,.0f} s</text>'
        )
    for number, (name, (colour, values)) in enumerate(lines.items()):
        path, pen = [], "M"
        for when, value in zip(at, values):
            if value is None:
                pen = "M"
                continue
            path.append(f"{pen}{x(when):.1f} {y(value):.1f}")
            pen = "L"
        parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{LEFT + 8 + 130 * number}" y="{top - 4}" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{LEFT + wide}" y="{top - 4}" text-anchor="end" fill="#555">{unit}</text>')
    return parts
