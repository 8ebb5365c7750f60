"""When drafts pay, and how long they are: by how often they were right, and by how long a step of more rows takes.

A drafted token is a row of its own in a step: one token, after all that come before it. So the programs are those of
any decode step, and at most as many tokens are drafted as the batch has rows left. Each row samples what it would
without drafts, its seed and position being the same, so a sequence's tokens are the same too: of a draft those count
that were sampled by the row before.

Drafts need to know a sequence's last token, so the step that samples it is read before the next one is launched, and
the device waits for the host meanwhile. Whether that pays is reckoned out before each step.
"""

import heapq
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.scheduler import Scheduler, Sequence
from ray_configs.llm import EngineConfig

MARGIN, MARGIN_IN_FLIGHT = 1.25, 1.4
"""Tokens a second that drafts must promise, as a multiple of those without; before the device is kept waiting, more.
What promises less would be lost where the times are a little off."""
GROWTH = 1.25
"""How much longer a step of more rows may take than the one that the sequences need anyway. On TPUs, which read all
weights for any of them, it hardly does; on a CPU it does, and sequences that guess so-so would lose by it."""
UNLIKELY = 0.1
"""A token less likely to be right than this is not drafted: its row is not free, it reads the sequence's KV cache."""
TYPICAL_CONTEXT = 256
"""Tokens that a row looks back on where steps are timed."""
ROUNDS = 3
SMOOTHING = 0.1
FADING = 0.002


class Drafting(NamedTuple):
    """What is known of a sequence that has a draft."""

    rate: float  # of its tokens that turn out right
    most: int  # tokens


class Pace:
    """How long a turn of the loop takes, by the rows of the step that it reads, and whether it reads that step first.

    At first that is reckoned out of the steps' own times and the host's part of a turn. What turns take then counts
    more; of a kind that does not occur it fades, so that whatever was slow once is tried again.

    Args:
        seconds: of steps, by rows, fewest first.
    """

    def __init__(self, seconds: dict[int, float]):
        self.host_s = 0.0
        self._steps: list[tuple[int, float]] = []
        for rows, taken in seconds.items():  # no step is quicker than a smaller one, whatever the clock says
            self._steps.append((rows, max(taken, self._steps[-1][1] if self._steps else 0.0)))
        self.sizes = frozenset(seconds)
        self._off: dict[tuple[int, bool], float] = {}  # turns as a multiple of what is reckoned

    @classmethod
    def measured(cls, executor: Executor[Any], config: EngineConfig) -> "Pace":
        """Of the steps that are compiled and have no more tokens than the batch has rows.

        Args:
            config: of the executor's DP rank.
        """
        most = config.max_batch_size
        return cls({rows: _seconds(executor, rows, most, config.page_size) for rows in _sizes(executor, most)})

    @property
    def most_rows(self) -> int:
        return self._steps[-1][0]

    def nearly_free(self, rows: int) -> int:
        """Rows that a step of so many may have beside them."""
        _, step_s = self._step(rows)
        return max(size for size, seconds in self._steps if size >= rows and seconds <= GROWTH * step_s) - rows

    def turn_s(self, rows: int, reads_first: bool) -> float:
        """Of a turn that reads a step of so many rows: before it launches the next one, or while that one runs."""
        size, step_s = self._step(rows)
        return self._reckoned(step_s, reads_first) * self._off.get((size, reads_first), 1.0)

    def note(self, rows: int, reads_first: bool, turn_s: float, host_s: float) -> None:
        """A turn of the loop has ended, of which the host was busy for so long.

        Args:
            rows: of the step that it read.
        """
        if rows > self.most_rows:
            return
        size, step_s = self._step(rows)
        self.host_s += SMOOTHING * (min(host_s, turn_s) - self.host_s)
        for kind, off in self._off.items():
            self._off[kind] = off + FADING * (1.0 - off)
        off, kind = turn_s / self._reckoned(step_s, reads_first), (size, reads_first)
        known = self._off.get(kind, 1.0)
        self._off[kind] = known + SMOOTHING * (min(off, 3 * known) - known)  # a stall is no rule

    def _step(self, rows: int) -> tuple[int, float]:
        return next((size, seconds) for size, seconds in self._steps if size >= rows)

    def _reckoned(self, step_s: float, reads_first: bool) -> float:
        return max(self.host_s + step_s if reads_first else max(self.host_s, step_s), 1e-6)


def draft_lengths(scheduler: Scheduler, config: EngineConfig, pace: Pace, in_flight: bool) -> dict[Sequence, int]:
    """How many tokens it pays to draft for which of the sequences that decode; see `lengths`."""
    decodes = [seq for seq in scheduler.running if seq.one_left]
    having = [seq for seq in decodes if seq.drafter is not None and seq.drafter.guesses]
    if not having:
        return {}
    # Each sequence that may be in the step has a row, those that may enter it too.
    spare = max(config.max_batch_size - len(scheduler.running) - len(scheduler.waiting), 0)
    drafting = [
        Drafting(seq.drafter.rate, min(config.max_draft_tokens, seq.limit - len(seq.tokens) - 1)) for seq in having
    ]
    chosen = lengths(drafting, len(decodes), spare, pace, in_flight)
    return {seq: count for seq, count in zip(having, chosen) if count}


def lengths(drafting: list[Drafting], decodes: int, spare: int, pace: Pace, in_flight: bool) -> list[int]:
    """How many tokens to draft for each; all 0 where that promises less than going on without.

    Args:
        decodes: sequences that decode in the step, those without a draft too.
        spare: rows that are left beside them.
        in_flight: a step runs whose tokens are not known yet. It may turn out that a draft was wrong before it is used,
            and waiting for the step is a loss to make up for.
    """
    chosen = [0] * len(drafting)
    room = min(spare, pace.nearly_free(decodes)) if drafting else 0
    if room <= 0:
        return chosen
    first = [one.rate * one.rate if in_flight else one.rate for one in drafting]
    best = decodes / pace.turn_s(decodes, reads_first=False) * (MARGIN_IN_FLIGHT if in_flight else MARGIN)
    at_most = decodes + sum(p / (1.01 - one.rate) for one, p in zip(drafting, first))
    if at_most / pace.turn_s(decodes + 1, reads_first=True) <= best:
        return chosen
    likely = [(-p, i) for i, (one, p) in enumerate(zip(drafting, first)) if one.most > 0]
    heapq.heapify(likely)
    order: list[int] = []
    tokens, best_count = float(decodes), 0
    while likely and len(order) < room and -likely[0][0] >= UNLIKELY:
        negative, i = likely[0]
        order.append(i)
        chosen[i] += 1
        tokens -= negative
        if chosen[i] < drafting[i].most:
            heapq.heapreplace(likely, (negative * drafting[i].rate, i))
        else:
            heapq.heappop(likely)
        ends = not likely or len(order) == room or -likely[0][0] < UNLIKELY
        if ends or decodes + len(order) in pace.sizes:  # more rows of a step that is as large take no longer
            speed = tokens / pace.turn_s(decodes + len(order), reads_first=True)
            if speed > best:
                best, best_count = speed, len(order)
    for i in order[best_count:]:
        chosen[i] -= 1
    return chosen


def _sizes(executor: Executor[Any], most: int) -> Iterator[int]:
    rows = 1
    while rows <= most:
        size = min(executor.shape_for(rows, rows).tokens, most)
        yield size
        rows = size + 1


def _seconds(executor: Executor[Any], rows: int, nobody: int, page_size: int) -> float:
    """The quickest of some steps of so many rows. They write to page 0, and to the batch's row that is nobody's."""
    shape = executor.shape_for(rows, rows)
    step = shape.host()
    context = min(TYPICAL_CONTEXT, page_size * shape.max_pages)
    pages = [0] * -(-context // page_size)
    for _ in range(rows):
        step.add((0,), context, pages, False, row=nobody, repetition=1.0)

    def once() -> float:
        began = time.perf_counter()
        executor.read(executor.launch(step))
        return time.perf_counter() - began

    return min(once() for _ in range(ROUNDS))
