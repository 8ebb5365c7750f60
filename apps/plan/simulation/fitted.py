"""Step times of this machine: fitted to steps that ran on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from apps.plan.simulation.recording import TimedStep
from apps.plan.simulation.timing import HostTimes, StepCost

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Tokens of a step between which its time is linear."""
REMEMBERED = 4
"""Steps that a part of a prompt makes slower after it: it has taken the caches, and the clock may have gone down."""
FEW_KNOTS = (1, 4, 16, 64, 256)
LEAST_STEPS = 50
LEAST_WAIT_S = 20e-6
"""A step that was read sooner had ended before: how long it ran is not known."""
SMOOTH = 0.02
"""Weight of a time per token that changes evenly, against steps that were seen."""
ROUNDS = 4
"""Of fitting, each with weights by the times that the one before has found."""


@dataclass(frozen=True)
class Curve:
    """Seconds by a number of tokens, linear between knots."""

    knots: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, tokens: int) -> float:
        return float(np.interp(tokens, self.knots, self.seconds))


@dataclass(frozen=True)
class FittedTimes:
    """A step's time: by its tokens, and for what they attend to."""

    decoding: Curve
    """Of steps that only decode."""
    mixed: Curve
    """Of steps with a part of a prompt."""
    per_position: Curve
    """For each position that a decoding token attends to, by how many tokens decode: few leave threads without work."""
    per_pair: float
    """Of a token of a prompt, and a position that it attends to."""
    after: tuple[float, ...]
    """What the first steps that only decode take longer, after one with a part of a prompt."""
    error: float
    """Median, relative, over the steps that this was fitted to."""

    @property
    def remembers(self) -> int:
        return len(self.after)

    def cost(self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]], since: int) -> StepCost:
        """See `StepClock`. All of it counts as computing."""
        tokens = len(decodes) + sum([tokens for tokens, _ in chunks])
        seconds = (self.mixed if chunks else self.decoding).at(tokens) + self.per_position.at(len(decodes)) * sum(
            decodes
        )
        if not chunks and since < len(self.after):
            seconds += self.after[since]
        seconds += self.per_pair * sum([_pairs(tokens, length) for tokens, length in chunks])
        return StepCost(compute=seconds)


def _pairs(tokens: int, length: int) -> float:
    return tokens * (length - (tokens - 1) / 2)


def fit(steps: Sequence[TimedStep]) -> FittedTimes:
    """Step times that explain these steps, each launched before the one before it was read.

    Their sum is that of the steps: what now and then holds up a step here is part of each.

    Raises:
        ValueError: there are too few of them.
    """
    seen = _durations(steps)
    decoding, mixed = (
        _knots([step for step, _, _ in seen if bool(step.chunks) is with_chunks]) for with_chunks in (False, True)
    )
    if len(seen) < LEAST_STEPS or not decoding or not mixed:
        raise ValueError(f"{len(seen)} steps whose time is known are too few to fit step times to")
    positions = (*(knot for knot in FEW_KNOTS if knot < decoding[-1]), decoding[-1])
    rows = np.array([_features(step, since, decoding, mixed, positions) for step, _, since in seen])
    times = np.array([seconds for _, seconds, _ in seen])
    # Where no step had as many tokens, the time goes on from knot to knot as it did before.
    bends = np.array([*_bends(decoding, 0, rows.shape[1]), *_bends(mixed, len(decoding), rows.shape[1])])
    found = times
    for _ in range(ROUNDS):
        # By the time that is expected of a step, not by its own: else those that were quick by chance count most.
        weights = 1 / np.sqrt(np.maximum(found, times.min()))
        scale = SMOOTH * weights.mean() * np.sqrt(len(seen))
        wanted = np.concatenate([times * weights, np.zeros(len(bends))])
        values, _ = nnls(np.vstack([rows * weights[:, None], bends * scale]), wanted, maxiter=20 * rows.shape[1])
        found = rows @ values
    off = float(np.median(np.abs(times - found) / times))
    ends = np.cumsum([len(decoding), len(mixed), len(positions)])
    parts = [tuple(part.tolist()) for part in np.split(values, ends)]
    of_decoding, of_mixed, of_position = map(Curve, (decoding, mixed, positions), parts)
    pair, *after = parts[-1]
    return FittedTimes(of_decoding, of_mixed, of_position, pair, tuple(after), off)


def _knots(steps: Sequence[TimedStep]) -> tuple[int, ...]:
    most = max(map(_tokens, steps), default=0)
    return (*(knot for knot in KNOTS if knot < most), most) if steps else ()


def _tokens(step: TimedStep) -> int:
    return len(step.decodes) + sum(tokens for tokens, _ in step.chunks)


def _features(
    step: TimedStep, since: int, decoding: tuple[int, ...], mixed: tuple[int, ...], positions: tuple[int, ...]
) -> list[float]:
    tokens, plain = _tokens(step), not step.chunks
    return [
        *_hats(decoding, tokens, float(plain)),
        *_hats(mixed, tokens, float(not plain)),
        *_hats(positions, len(step.decodes), float(sum(step.decodes))),
        sum(_pairs(tokens, length) for tokens, length in step.chunks),
        *(float(plain and since == steps) for steps in range(REMEMBERED)),
    ]


def _hats(knots: tuple[int, ...], at: int, value: float) -> list[float]:
    """The shares of a value that the knots on either side have of it."""
    return [value * float(np.interp(at, knots, [float(each == knot) for each in knots])) for knot in knots]


def _bends(knots: tuple[int, ...], first: int, width: int) -> Iterator[np.ndarray]:
    """How much the time per token changes at each knot; rows to keep small."""
    for (a, b), (_, c) in pairwise(pairwise(range(len(knots)))):
        left, right = knots[b] - knots[a], knots[c] - knots[b]
        row = np.zeros(width)
        row[[first + a, first + b, first + c]] = np.array([1 / left, -1 / left - 1 / right, 1 / right]) * min(
            left, right
        )
        yield row


def _durations(steps: Sequence[TimedStep]) -> list[tuple[TimedStep, float, int]]:
    """Steps with the time from when they could begin to when they were read, where the reader waited for that; and how
    many steps there were since the last one with a part of a prompt."""
    found, before, since = [], -1e9, REMEMBERED
    for step in steps:
        seconds = step.read - max(step.launched, before)
        if step.read - step.asked > LEAST_WAIT_S and seconds > 0:
            found.append((step, seconds, since))
        before, since = step.read, 0 if step.chunks else since + 1
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
