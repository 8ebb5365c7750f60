"""Chooses when to draft and how many tokens, from acceptance rates and the measured times of larger steps.

Each drafted token takes a row of its own in the step: one token that attends to all before it. So drafts run in the
same compiled programs as any decode step, and take at most the rows that the batch has left. Each row samples what it
would sample without drafts, because its seed and position are the same. A drafted token is accepted if the row before
it sampled the same token, so drafts never change a sequence's tokens.

A draft continues a sequence's last token, so the step that samples that token must be read before the next one is
launched; meanwhile the device waits for the host. Each step weighs this cost against the tokens gained.
"""

import heapq
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.schedule.scheduler import Scheduler
from apps.llm.engine.schedule.sequence import Sequence
from ray_configs.llm import EngineConfig

MARGIN, MARGIN_IN_FLIGHT = 1.25, 1.4
"""Speedup in tokens a second that drafts must promise; the second applies before the device is kept waiting. A smaller
gain would be lost to errors in the predicted times."""
UNLIKELY = 0.1
"""Least acceptance probability of a drafted token. Below it the row, which reads the KV cache, does not pay."""
TYPICAL_CONTEXT = 256
"""Context length, in tokens, of the rows in timed steps."""
ROUNDS = 3
SMOOTHING = 0.1
DECAY = 0.002


class DraftState(NamedTuple):
    """What the choice needs to know of a sequence that has a draft."""

    acceptance: float  # rate at which its guesses were accepted
    max_tokens: int  # that it may draft


class TurnTimes:
    """Predicts the time of a turn of the loop, by the rows of the step it reads and whether it reads before launching.

    The first prediction comes from the measured step times and the host's part of a turn. Measured turns then correct
    it, with a ratio for each kind of turn. Ratios decay towards 1, so that a kind that was slow once is tried again.

    Args:
        seconds: time of a step by its rows, fewest rows first.
    """

    def __init__(self, seconds: dict[int, float]):
        self.host_s = 0.0
        self._steps: list[tuple[int, float]] = []
        for rows, taken in seconds.items():  # noise aside, a larger step is never faster than a smaller one
            self._steps.append((rows, max(taken, self._steps[-1][1] if self._steps else 0.0)))
        self.sizes = frozenset(seconds)
        self._ratios: dict[tuple[int, bool], float] = {}  # measured turn time / predicted

    @classmethod
    def measured(cls, executor: Executor[Any], config: EngineConfig) -> "TurnTimes":
        """Time every compiled step that has no more tokens than the batch has rows.

        Where steps skip padding, also with every power of two of rows.

        Args:
            config: of the executor's DP rank.
        """
        most = config.max_batch_size
        return cls({rows: _seconds(executor, rows, most, config.page_size) for rows in _sizes(executor, most)})

    @property
    def most_rows(self) -> int:
        return self._steps[-1][0]

    def turn_s(self, rows: int, reads_first: bool) -> float:
        """Predicted time of a turn that reads a step of `rows` rows, before launching the next one or while it runs."""
        size, step_s = self._step(rows)
        return self._predicted(step_s, reads_first) * self._ratios.get((size, reads_first), 1.0)

    def note(self, rows: int, reads_first: bool, turn_s: float, host_s: float) -> None:
        """Learn from a turn of the loop that has ended.

        Args:
            rows: of the step that the turn read.
            host_s: the part of `turn_s` in which the host did not wait for the device.
        """
        if rows > self.most_rows:
            return
        size, step_s = self._step(rows)
        self.host_s += SMOOTHING * (min(host_s, turn_s) - self.host_s)
        for kind, ratio in self._ratios.items():
            self._ratios[kind] = ratio + DECAY * (1.0 - ratio)
        ratio, kind = turn_s / self._predicted(step_s, reads_first), (size, reads_first)
        known = self._ratios.get(kind, 1.0)
        self._ratios[kind] = known + SMOOTHING * (min(ratio, 3 * known) - known)  # clips a stall

    def _step(self, rows: int) -> tuple[int, float]:
        return next((size, seconds) for size, seconds in self._steps if size >= rows)

    def _predicted(self, step_s: float, reads_first: bool) -> float:
        return max(self.host_s + step_s if reads_first else max(self.host_s, step_s), 1e-6)


def draft_lengths(scheduler: Scheduler, config: EngineConfig, times: TurnTimes, in_flight: bool) -> dict[Sequence, int]:
    """How many tokens to draft for each decoding sequence, where it pays; see `lengths`."""
    decodes = [seq for seq in scheduler.running if seq.one_left]
    # Every sequence that may run in the step needs a row, also those that wait and may enter it.
    spare = max(config.max_batch_size - len(scheduler.running) - len(scheduler.waiting), 0)
    if not decodes or not spare:
        return {}  # before the drafters follow their sequences: a batch without room costs them nothing
    guessing = {seq: drafter for seq in decodes if (drafter := seq.follow()) is not None and drafter.guesses}
    if not guessing:
        return {}
    limits = [min(config.max_draft_tokens, seq.limit - len(seq.tokens) - 1) for seq in guessing]
    drafting = [DraftState(drafter.acceptance, limit) for drafter, limit in zip(guessing.values(), limits)]
    chosen = lengths(drafting, len(decodes), spare, times, in_flight)
    return {seq: count for seq, count in zip(guessing, chosen) if count}


def lengths(drafting: list[DraftState], decodes: int, spare: int, times: TurnTimes, in_flight: bool) -> list[int]:
    """How many tokens to draft for each sequence; all 0 where drafts promise no gain.

    Args:
        decodes: sequences that decode in the step, including those without a draft.
        spare: rows left beside them.
        in_flight: a step whose tokens are not known yet is running. Its tokens may prove a draft wrong before it is
            used, and the gain must make up for the wait for that step.
    """
    chosen = [0] * len(drafting)
    room = min(spare, times.most_rows - decodes) if drafting else 0
    if room <= 0:
        return chosen
    first = [state.acceptance * state.acceptance if in_flight else state.acceptance for state in drafting]
    best = decodes / times.turn_s(decodes, reads_first=False) * (MARGIN_IN_FLIGHT if in_flight else MARGIN)
    at_most = decodes + sum(p / (1.01 - state.acceptance) for state, p in zip(drafting, first))
    if at_most / times.turn_s(decodes + 1, reads_first=True) <= best:
        return chosen
    likely = [(-p, i) for i, (state, p) in enumerate(zip(drafting, first)) if state.max_tokens > 0]
    heapq.heapify(likely)
    order: list[int] = []
    tokens, best_count = float(decodes), 0
    while likely and len(order) < room and -likely[0][0] >= UNLIKELY:
        negative, i = likely[0]
        order.append(i)
        chosen[i] += 1
        tokens -= negative
        if chosen[i] < drafting[i].max_tokens:
            heapq.heapreplace(likely, (negative * drafting[i].acceptance, i))
        else:
            heapq.heappop(likely)
        ends = not likely or len(order) == room or -likely[0][0] < UNLIKELY
        if ends or decodes + len(order) in times.sizes:  # rows up to the next compiled size are free
            speed = tokens / times.turn_s(decodes + len(order), reads_first=True)
            if speed > best:
                best, best_count = speed, len(order)
    for i in order[best_count:]:
        chosen[i] -= 1
    return chosen


def _sizes(executor: Executor[Any], most: int) -> Iterator[int]:
    rows = 1
    while rows <= most:
        size = min(rows if executor.skips_padding else executor.shape_for(rows, rows).tokens, most)
        yield size
        rows = 2 * size if executor.skips_padding else size + 1


def _seconds(executor: Executor[Any], rows: int, scratch: int, page_size: int) -> float:
    """The fastest of ROUNDS steps of `rows` rows. They write to page 0 and to the scratch slot only."""
    shape = executor.shape_for(rows, rows)
    step = shape.host()
    context = min(TYPICAL_CONTEXT, page_size * shape.max_pages)
    pages = [0] * -(-context // page_size)
    for _ in range(rows):
        step.add((0,), context, pages, False, row=scratch, repetition=1.0)

    def once() -> float:
        start = time.perf_counter()
        executor.read(executor.launch(step))
        return time.perf_counter() - start

    return min(once() for _ in range(ROUNDS))
