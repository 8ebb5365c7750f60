"""Step times of this machine: fitted to steps that ran on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from apps.plan.simulation.recording import TimedStep
from apps.plan.simulation.timing import HostTimes, StepCost

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Tokens of a step between which its time is linear."""
LEAST_WAIT_S = 20e-6
"""A step that was read sooner had ended before: how long it ran is not known."""
SMOOTH = 0.02
"""Weight of a time per token that changes evenly, against a step that was seen."""

HELD_UP = 0.75
"""Share of a step's time that its fit does not explain, from which something else has held it up."""


@dataclass(frozen=True)
class FittedTimes:
    """A step's time: by its tokens, and for what they attend to."""

    knots: tuple[int, ...]
    at_knots: tuple[float, ...]  # seconds
    per_position: float  # that a decoding token attends to
    per_pair: float  # of a token in a chunk and a position that it attends to
    per_decode: float
    per_chunk: float
    error: float  # median, relative, over the steps it was fitted to

    def cost(self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]]) -> StepCost:
        """See `StepClock`. All of it counts as computing."""
        tokens = len(decodes) + sum([tokens for tokens, _ in chunks])
        seconds = float(np.interp(tokens, self.knots, self.at_knots))
        seconds += self.per_position * sum(decodes) + self.per_decode * len(decodes) + self.per_chunk * len(chunks)
        seconds += self.per_pair * sum([_pairs(tokens, length) for tokens, length in chunks])
        return StepCost(compute=seconds)


def _pairs(tokens: int, length: int) -> float:
    return tokens * (length - (tokens - 1) / 2)


def fit(steps: Sequence[TimedStep]) -> FittedTimes:
    """Step times that explain these steps, each launched before the one before it was read.

    Raises:
        ValueError: there are too few of them.
    """
    seen = [(step, seconds) for step, seconds in _durations(steps)]
    if len(seen) < 50:
        raise ValueError(f"{len(seen)} steps whose time is known are too few to fit step times to")
    most = max(_tokens(step) for step, _ in seen)
    knots = (*(knot for knot in KNOTS if knot < most), most)
    rows = np.array([_features(step, knots) for step, _ in seen])
    times = np.array([seconds for _, seconds in seen])
    weights = 1 / np.sqrt(times)
    # Where no step had as many tokens, the time goes on from knot to knot as it did before.
    bends = np.zeros((max(len(knots) - 2, 0), rows.shape[1]))
    for row, ((a, b), (_, c)) in zip(bends, pairwise(pairwise(range(len(knots))))):
        left, right = knots[b] - knots[a], knots[c] - knots[b]
        row[[a, b, c]] = np.array([1 / left, -1 / left - 1 / right, 1 / right]) * min(left, right)
    scale = SMOOTH * weights.mean() * np.sqrt(len(seen))
    kept = np.ones(len(seen), bool)
    for _ in range(3):
        explained = np.vstack([(rows * weights[:, None])[kept], bends * scale])
        wanted = np.concatenate([(times * weights)[kept], np.zeros(len(bends))])
        values, _ = nnls(explained, wanted, maxiter=20 * rows.shape[1])
        off = (times - rows @ values) / times
        kept = np.abs(off) < HELD_UP
    at_knots, (position, pair, decode, chunk) = values[: len(knots)].tolist(), values[len(knots) :].tolist()
    return FittedTimes(knots, tuple(at_knots), position, pair, decode, chunk, float(np.median(np.abs(off))))


def _tokens(step: TimedStep) -> int:
    return len(step.decodes) + sum(tokens for tokens, _ in step.chunks)


def _features(step: TimedStep, knots: tuple[int, ...]) -> list[float]:
    tokens = _tokens(step)
    hats = [float(np.interp(tokens, knots, [float(each == knot) for each in knots])) for knot in knots]
    pairs = sum(_pairs(tokens, length) for tokens, length in step.chunks)
    return [*hats, sum(step.decodes), pairs, len(step.decodes), len(step.chunks)]


def _durations(steps: Sequence[TimedStep]) -> list[tuple[TimedStep, float]]:
    """Steps with the time from when they could begin to when they were read, where the reader waited for that."""
    found, before = [], -1e9
    for step in steps:
        if step.read - step.asked > LEAST_WAIT_S:
            found.append((step, step.read - max(step.launched, before)))
        before = step.read
    return found


def host_times(steps: Sequence[TimedStep]) -> HostTimes:
    """The engine's own work around a step: from one step's tokens to the launch of the next one but one."""
    points = list[tuple[int, float]]()
    for (before, now), (_, after) in pairwise(pairwise(steps)):
        # `before` is read, its tokens handed on, `after` planned and launched; then `now` is waited for.
        work = after.launched - before.read
        if now.asked <= after.launched + 1e-3 and 0 < work < 0.05 and len(after.decodes) == len(now.decodes):
            points.append((len(after.decodes) + len(after.chunks), work))
    by_rows = dict[int, list[float]]()
    for rows, work in points:
        by_rows.setdefault(rows, []).append(work)
    medians = {rows: median(works) for rows, works in by_rows.items() if len(works) >= 5}
    if len(medians) < 2:
        return HostTimes(step_s=median(work for _, work in points) if points else 0.0, row_s=0.0)
    left = np.array([[1.0, rows] for rows in medians])
    values, _ = nnls(left, np.array(list(medians.values())))
    return HostTimes(step_s=float(values[0]), row_s=float(values[1]))
