"""One DP rank on a virtual clock: takes the turns that `Stepper` takes, and computes nothing.

Its device starts a step when that is launched and the one before has ended. Its host launches step n + 1 before it
reads step n, as the engine does, so the longer of the two hides the other.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from apps.llm.api import CacheNews, TokenRequest
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.schedule.scheduler import Scheduler
from apps.llm.engine.schedule.sequence import Sequence, Work
from apps.llm.engine.schedule.steady import advance, steady_steps
from apps.plan.simulation.timing import HostTimes, StepClock, StepCost
from ray_configs.llm import EngineConfig


class InFlight(NamedTuple):
    """A step that was launched and not read."""

    ends: float
    samples: list[Sequence]  # those whose next token it computes


class Listeners(NamedTuple):
    """Who hears of a sequence, each time with the clock."""

    entered: Callable[[Sequence, float], None]
    began: Callable[[Sequence, float], None]  # its first token was handed on
    ended: Callable[[Sequence, float], None]  # its last one was


class SimulatedRank:
    """The sequences of one DP rank.

    Args:
        config: of the rank, with its own share of the batch.
        pages: of the KV cache, page 0 included.
        busy: how many ranks of its process, itself included, have something to do: they share an interpreter.
    """

    def __init__(
        self,
        config: EngineConfig,
        pages: int,
        times: StepClock,
        host: HostTimes,
        told: Listeners,
        busy: Callable[[], int] = lambda: 1,
    ):
        self.config, self._times, self._host, self._told = config, times, host, told
        self.scheduler = Scheduler(
            PagePool(pages, config.prefix_cache),
            config.page_size,
            config.max_batch_size,
            config.max_step_tokens,
            prefix_states=config.prefix_states or 0,
        )
        self.clock = 0.0  # when its next turn can begin
        self.cost = [0.0, 0.0, 0.0]  # seconds of the device, as StepCost has them
        self.host_s = self.starved_s = 0.0  # the host's work; the device's waits for it, with requests open
        self.full_s = 0.0  # the time with a full batch and requests waiting
        self.short_s = 0.0  # the time with slots, and no pages for who waits
        self.steps = self.rows = 0
        self._busy, self._interpreter_free = busy, 0.0
        self._device_free = self._text_s = 0.0
        self._pending: InFlight | None = None
        self._since = times.remembers  # steps since the last with a part of a prompt
        self._begun = set[Sequence]()  # running, with a token handed on
        self._steady = self._waits = self._full = False  # as the last step was planned

    # -- as `RankChoice` sees a loop ------------------------------------------------------------------------------

    @property
    def stepper(self) -> SimpleNamespace:
        return SimpleNamespace(config=self.config)

    @property
    def open(self) -> int:
        """Sequences waiting or running."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def cache_news(self, since: int) -> CacheNews:
        return self.scheduler.pool.news.since(since)

    # -- the simulation -------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return self._pending is None and not self.open

    def add(self, seq: Sequence, now: float) -> None:
        if self.idle:
            self.clock = max(self.clock, now)
            self._device_free = max(self._device_free, now)
        self.scheduler.add(seq)

    def run(self, until: float) -> None:
        """Take turns as long as one begins before `until`."""
        while not self.idle and self.clock < until:
            self.take(until)

    def take(self, until: float) -> None:
        """One turn, or several alike of which each begins before `until`."""
        before = self.clock
        settled = self._steady and self._since >= self._times.remembers
        steps = steady_steps(self.scheduler) if settled and self._pending else 0
        if steps > 1:
            self._leap(steps, until)
        else:
            self._single_step()
        if self._waits:
            self.full_s += (self.clock - before) * self._full
            self.short_s += (self.clock - before) * (not self._full)

    def _single_step(self) -> None:
        scheduler, pending = self.scheduler, self._pending
        work = scheduler.schedule()
        if scheduler.states is not None:
            scheduler.states.take()  # to copy a state takes no time here
        for seq in scheduler.entered:
            self._told.entered(seq, self.clock)
        scheduler.entered.clear()
        self._waits, self._full = next(scheduler.accounts.waiting, None) is not None, not scheduler.slots
        self._pending, self._steady = None, bool(work) and all(item.decoding for item in work)
        if work:
            decodes, chunks = _parts(work)
            cost = self._times.cost(decodes, chunks, self._since)
            self._since = 0 if chunks else min(self._since + 1, self._times.remembers)
            self._spend(cost, 1)
            ends = self._launch(cost.seconds, len(work))
            self._pending = InFlight(ends, [item.seq for item in work if item.samples])
        if pending is not None:
            self._read(pending.ends, len(pending.samples))
            for seq in pending.samples:
                if not seq.done:
                    scheduler.fill_in(seq, 0)
                    self._hand_on(seq)
        elif not work:
            raise AssertionError("an engine with open requests has nothing to do")
        self.steps += bool(work)
        self.rows += len(work)

    def _hand_on(self, seq: Sequence) -> None:
        """A token was read."""
        if seq not in self._begun:
            self._begun.add(seq)
            self._told.began(seq, self.clock)
        if len(seq.tokens) - seq.unread >= seq.limit:
            self._begun.discard(seq)
            self.scheduler.finish(seq)
            self._told.ended(seq, self.clock)

    def _leap(self, most: int, until: float) -> None:
        """Turns of which each computes one token of every running sequence."""
        running, pending = self.scheduler.running, self._pending
        assert pending is not None
        rows, lengths = len(running), [len(seq.tokens) for seq in running]
        first = self._times.cost(lengths, (), self._since)
        last = self._times.cost([length + most - 1 for length in lengths], (), self._since)
        begins, grows = first.seconds, (last.seconds - first.seconds) / (most - 1)
        ends, samples, steps = pending.ends, pending.samples, 0
        while steps < most and (not steps or self.clock < until):
            ends, before = self._launch(begins + grows * steps, rows), ends
            self._read(before, len(samples) if not steps else rows)
            if not steps:
                for seq in samples:
                    if seq not in self._begun:
                        self._begun.add(seq)
                        self._told.began(seq, self.clock)
            steps += 1
        self._pending = InFlight(ends, list(running))
        advance(self.scheduler, steps)
        middle = (steps - 1) / (2 * (most - 1))
        self._spend(StepCost(*(low + (high - low) * middle for low, high in zip(first, last))), steps)
        self.steps += steps
        self.rows += steps * rows

    def _launch(self, step_s: float, rows: int) -> float:
        """Plan and launch a step; returns when it ends."""
        work = self._host.step_s + self._host.row_s * rows
        began = max(self.clock, self._interpreter_free)
        self._interpreter_free = began + work * self._busy()  # the others have their turns
        self.clock = began + work
        self.host_s += work
        self.starved_s += max(0.0, self.clock - self._device_free)
        self._device_free = max(self.clock, self._device_free) + step_s
        return self._device_free

    def _read(self, ends: float, samples: int) -> None:
        """Wait for a step and hand its tokens on. Their text takes the time in which the engine's thread waits."""
        waits = max(0.0, ends - self.clock)
        self.clock += waits + max(0.0, self._text_s - waits)
        self._text_s = self._host.token_s * samples
        self.host_s += self._text_s

    def _spend(self, cost: StepCost, steps: int) -> None:
        for cause, seconds in enumerate(cost):
            self.cost[cause] += seconds * steps


def _parts(work: list[Work]) -> tuple[list[int], list[tuple[int, int]]]:
    decodes, chunks = list[int](), list[tuple[int, int]]()
    for item in work:
        if item.stop - item.start == 1:
            decodes.append(item.stop)
        else:
            chunks.append((item.stop - item.start, item.stop))
    return decodes, chunks


def sequence(request: TokenRequest, names: list[bytes]) -> Sequence:
    """A request's sequence, whose tokens are all alike; its pages have the names given, prompt and answer.

    Args:
        names: for every page that it will fill.
    """
    made = Sequence(request, request.id, request.limit, list(request.prompt_ids), len(request.prompt_ids))
    made.hashes = names
    return made
