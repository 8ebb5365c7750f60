"""A DP rank's turns: schedule, launch, read the previous step. It has no thread and no lock; `loop` has both.

1. The scheduler plans the next step and the executor launches it.
2. While the device computes, the turn reads the previous step: it checks which tokens end their answers, and hands the
   outputs to their sinks, those of one sink together.
3. A finished, aborted or failed sequence gives its pages back at once. A step already launched for it is wasted; that
   is the price of never waiting for the device.

When drafts are expected to pay, the turn reads the running step before it plans the next: see `speculation`.
"""

import heapq
import time
from collections.abc import Callable, Iterable
from typing import Generic

from apps.llm.api import LATE, EngineStats, Sink, TokenOutput
from apps.llm.engine.executor_protocol import Executor, LaunchedT, Tokens
from apps.llm.engine.images.needed import encoded
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.prefix.preparing import prepare
from apps.llm.engine.schedule.adapter_changes import AdapterChanges
from apps.llm.engine.schedule.answer import Answer, failed, last_output, unsound
from apps.llm.engine.schedule.delivery import Outputs, deliver
from apps.llm.engine.schedule.filling import SlotTable, build_constraints, build_step
from apps.llm.engine.schedule.pooling import PromptTask
from apps.llm.engine.schedule.scheduler import Scheduler
from apps.llm.engine.schedule.sequence import Sequence, Work, with_rows
from apps.llm.engine.speculation.choice import TurnTimes, draft_lengths
from ray_configs.llm import EngineConfig

Member = tuple[Sequence, Answer | PromptTask, Sink]
"""A request: its scheduler state, the answer or prompt task that consumes its tokens, and who takes its outputs."""


class Stepper(Generic[LaunchedT]):
    """Runs one executor's sequences, a turn at a time, from the queue to their end.

    Args:
        config: of this DP rank, with its own share of the batch.
        turn_times: how long its turns take; None turns speculation off.
        clock: nanoseconds, never 0. A turn reads it more than once: it also measures how long it waits for the device.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor[LaunchedT],
        turn_times: TurnTimes | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        self.config, self.executor, self.turn_times, self._clock = config, executor, turn_times, clock
        self.scheduler = Scheduler(
            PagePool(executor.pages, config.prefix_cache, executor.host_pages),
            config.page_size,
            config.max_batch_size,
            config.max_step_tokens,
            {name: caller.weight for name, caller in config.callers.items()},
            config.image_tokens,
            executor.prefix_states,
        )
        self.queued = 0  # sequences that have not entered the batch
        self.stalled = False  # the last turn had nothing to do but to wait for a mask
        self._table = SlotTable(config.max_batch_size, executor.shape_for(1, 1).max_pages)
        self._answers: dict[Sequence, Answer | PromptTask] = {}
        self._sinks: dict[Sequence, Sink] = {}
        self._by_id: dict[int, Sequence] = {}
        self._deadlines: list[tuple[int, int]] = []  # a heap of (clock, id of a request)
        self.adapter_changes = AdapterChanges()
        self._pending: tuple[list[Work], LaunchedT] | None = None  # launched, and not read
        self._news: Outputs = []  # not handed on yet
        self._waited = 0  # nanoseconds that this turn spent waiting for the device
        self._prompt_tokens = self._generated_tokens = self._scored_tokens = self._embeddings = self._steps = 0
        self._drafted_tokens = self._accepted_tokens = 0

    @property
    def idle(self) -> bool:
        """Whether a turn would do nothing."""
        return self._pending is None and not self._answers and not self.adapter_changes

    @property
    def must_wait(self) -> bool:
        """Whether a turn could do nothing before a mask comes from another process."""
        return self._pending is None and self.stalled

    # -- between two turns --------------------------------------------------------------------------------------

    def add(self, members: Iterable[Member]) -> None:
        """Queue requests."""
        for seq, answer, sink in members:
            self._answers[seq], self._sinks[seq], self._by_id[seq.request.id] = answer, sink, seq
            self.queued += 1
            self.scheduler.add(seq)
            if seq.request.deadline_s is not None:
                ends = self._clock() + int(seq.request.deadline_s * 1e9)
                heapq.heappush(self._deadlines, (ends, seq.request.id))

    def abort(self, ids: Iterable[int]) -> None:
        """End requests; those that are not here are not its concern."""
        for id in ids:
            if (seq := self._by_id.get(id)) is not None:
                self._close(seq, last_output(seq, "abort"))
        self._deliver()

    def close_ended(self, seqs: Iterable[Sequence]) -> None:
        """End those of these sequences whose grammar, in another process, has ended."""
        for seq in seqs:
            held = self._answers.get(seq)
            if isinstance(held, Answer) and held.matcher is not None and held.matcher.ended:
                self._close(seq, held.verdict())
        self._deliver()

    def fail(self, reason: str, queued: Iterable[Member] = ()) -> None:
        """Fail every open request with `reason`, also those that were not added yet, so that no reader waits forever.
        Nothing follows."""
        self.adapter_changes.fail(reason)
        ended = [(sink, last_output(seq, "error", reason)) for seq, sink in self.open(queued)]
        self._answers, self._sinks, self._by_id = {}, {}, {}
        deliver([*self._news, *ended])

    def open(self, queued: Iterable[Member] = ()) -> list[tuple[Sequence, Sink]]:
        """The open sequences, and who takes their outputs."""
        return [*list(self._sinks.items()), *((seq, sink) for seq, _, sink in queued)]

    def stats(self, queued: int, step_running_s: float) -> EngineStats:
        """`queued`: sequences that were not added yet."""
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=queued + self.queued,
            waiting_tokens=sum(seq.prompt_len for seq in list(self._answers) if not seq.entered_ns),
            pages_total=scheduler.pool.total - 1,
            pages_used=scheduler.pool.used,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            scored_tokens=self._scored_tokens,
            embeddings=self._embeddings,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            host_pages_total=scheduler.pool.host.total,
            host_pages_used=scheduler.pool.host.used,
            host_hit_tokens=scheduler.pool.host.returned * scheduler.page_size,
            preemptions=scheduler.preemptions,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            compiles_after_ready=self.executor.compiles_after_ready,
            programs_compiled=self.executor.programs_compiled,
            steps=self._steps,
            step_running_s=step_running_s,
        )

    # -- a turn -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One turn. It raises only what nothing can go on after: an answer's own failure ends that answer alone."""
        began, self._waited = self._clock(), 0
        self._expire(began)
        if self.adapter_changes:
            self.adapter_changes.write({seq.adapter for seq in self._answers}, self.executor.write_adapter)
        pending, self._pending = self._pending, None
        running = [] if pending is None else pending[0]
        reads_first = pending is not None and self._read_before_schedule(running)
        if pending is not None and reads_first:
            self._read(*pending)
            self._deliver()
            pending = None
        work = self.scheduler.schedule(self._drafts() if pending is None else {})
        prepare(self.scheduler.reuse, self.executor)
        self.stalled = not work and any(not seq.masked() for seq in self._answers)
        if work:
            self._pending = work, self._launch(work, began)
        if pending is not None:
            self._read(*pending)
        self._deliver()
        if self.turn_times and work and running and all(item.stop - item.start == 1 for item in running):
            rows, turn_s = sum(1 + len(item.draft) for item in running), (self._clock() - began) / 1e9
            self.turn_times.note(rows, reads_first, turn_s, turn_s - self._waited / 1e9)
        if self._pending is None and not self.scheduler.running:
            self.scheduler.check()

    def _expire(self, now: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, id = heapq.heappop(self._deadlines)
            if (seq := self._by_id.get(id)) is not None:
                self._close(seq, last_output(seq, "error", LATE, of_answer=True))

    def _read_before_schedule(self, running: list[Work]) -> bool:
        """Whether the next step needs the running one's tokens: because it has drafts, or to draft from them."""
        if any(item.draft for item in running):
            return True
        times = self.turn_times
        return times is not None and bool(draft_lengths(self.scheduler, self.config, times, in_flight=True))

    def _drafts(self) -> dict[Sequence, list[int]]:
        if self.turn_times is None:
            return {}
        wanted = draft_lengths(self.scheduler, self.config, self.turn_times, in_flight=False)
        return {seq: self._answers[seq].plausible(seq.drafted(count)) for seq, count in wanted.items()}

    def _enter(self, now: int) -> None:
        """Prepare the slots of sequences that have entered the batch."""
        for seq in self.scheduler.entered:
            answer, slot = self._answers[seq], seq.slot
            assert slot is not None  # it has entered
            if not seq.entered_ns:
                seq.entered_ns = now
                self.queued -= 1
                entry = TokenOutput(request=seq.request.id, cached_tokens=seq.cached_tokens, entered_ns=now)
                self._news.append((self._sinks[seq], entry))
            self._table.enter(slot, {**answer.settings, "adapter": seq.adapter})
            if answer.penalized:
                known = [token for token in seq.tokens if token >= 0]
                self.executor.start_slot(slot, known[: seq.prompt_len], known[seq.prompt_len :])
        self.scheduler.entered.clear()
        self._deliver()  # now: the step may take long

    def _launch(self, work: list[Work], now: int) -> LaunchedT:
        self._enter(now)
        drafted = sum(len(item.draft) for item in work)
        tokens = sum(item.stop - item.start for item in work) + drafted
        reads = any(isinstance(self._answers[item.seq], PromptTask) for item in work if not item.decoding)
        shape = self.executor.shape_for(tokens, len(work) + drafted, reads)
        step, readout = build_step(shape, work, self._answers, self._table)
        self._steps += 1
        self._drafted_tokens += drafted
        more = build_constraints(shape, work, self._answers, self.executor.arch.vocab_size)
        with encoded(self.scheduler.images, work, self.executor):
            return self.executor.launch(step, more, readout)

    def _read(self, work: list[Work], launched: LaunchedT) -> None:
        """Wait for a step's results and pass them on."""
        began = self._clock()
        result: Tokens = self.executor.read(launched)
        self._waited += self._clock() - began
        ids = result.ids.tolist()
        all_finite = min(ids) >= 0
        for row, item in with_rows(work):
            seq = item.seq
            if not all_finite and min(ids[row : row + 1 + len(item.draft)]) < 0:  # of a draft that is not taken, too
                for other in self.scheduler.spoil(seq, item.start):
                    if ids[row] < 0:
                        self._fail_answer(other)
            if seq.done:
                continue
            if not item.decoding:
                self._prompt_tokens += min(item.stop, seq.prompt_len) - min(item.start, seq.prompt_len)
            answer = self._answers[seq]
            if ids[row] < 0:
                self._fail_answer(seq)
                continue
            if isinstance(answer, PromptTask):
                answer.note(result)
            if not item.samples:
                continue
            self.scheduler.fill_in(seq, ids[row])
            self._take(seq, answer, ids[row], result, row)
            for i, drafted in enumerate(item.draft, row):
                if seq.done or ids[i] != drafted:
                    break
                self._accepted_tokens += 1
                if ids[i + 1] < 0:
                    self._fail_answer(seq)
                    break
                self.scheduler.accept(seq, ids[i + 1])
                self._take(seq, answer, ids[i + 1], result, i + 1)
        prepare(self.scheduler.reuse, self.executor)

    def _take(self, seq: Sequence, answer: Answer | PromptTask, token: int, result: Tokens, row: int) -> None:
        """Take a sequence's next token, of this row of its step, and finish the sequence if it is the last one."""
        try:
            output = answer.take(token, result, row)
        except BaseException as error:  # a panic of a library is no Exception
            output = failed(seq, error)
        self._generated_tokens += len(output.token_ids)
        self._scored_tokens += len(output.scores)
        self._embeddings += output.embedding is not None
        self._news.append((self._sinks[seq], output))
        if output.finish_reason is not None:
            self._forget(seq)

    def _fail_answer(self, seq: Sequence) -> None:
        """End a sequence whose numbers are not finite."""
        self.scheduler.spoil(seq, seq.computed)
        self._close(seq, unsound(seq))

    def _close(self, seq: Sequence, last: TokenOutput) -> None:
        """End a sequence between two steps, with its last output."""
        if not seq.entered_ns:
            self.queued -= 1
        self._news.append((self._sinks[seq], last))
        self._forget(seq)

    def _forget(self, seq: Sequence) -> None:
        self.scheduler.finish(seq)
        del self._answers[seq], self._sinks[seq], self._by_id[seq.request.id]

    def _deliver(self) -> None:
        if self._news:
            news, self._news = self._news, []
            deliver(news)
