"""The loop of one DP rank: schedule, launch, read the previous step. Runs in its own thread.

1. The scheduler plans the next step and the executor launches it.
2. While the device computes, the loop reads the previous step: it checks which tokens end their answers, and hands the
   outputs to their sinks, those of one sink together.
3. A finished, aborted or failed sequence gives its pages back at once. A step already launched for it is wasted; that
   is the price of never waiting for the device.

When drafts are expected to pay, the loop reads the running step before it plans the next: see `speculation`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from apps.llm.api import EngineStats, EngineStopped, Sink, TokenOutput
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.executor_protocol import Executor, LaunchedT, Tokens
from apps.llm.engine.scheduling.answer import Answer, failed, last_output
from apps.llm.engine.scheduling.filling import SlotTable, extras, filled
from apps.llm.engine.scheduling.pages import PagePool
from apps.llm.engine.scheduling.pooling import PromptTask
from apps.llm.engine.scheduling.scheduler import Scheduler, Sequence, Work, with_rows
from apps.llm.engine.speculation.choice import TurnTimes, draft_lengths
from apps.llm.engine.text.remote_matcher import RemoteMatcher
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

UNSOUND = (
    "the numbers that the model computed are not finite: its weights, or the adapter's, are too large for their type, "
    "or damaged"
)

Member = tuple[Sequence, Answer | PromptTask, Sink]
"""A request: its scheduler state, the answer or prompt task that consumes its tokens, and who takes its outputs."""
Outputs = list[tuple[Sink, TokenOutput]]


@dataclass(eq=False)
class AdapterChange:
    """A place for an adapter whose matrices change, once no sequence uses it."""

    place: int
    layers: deque[tuple[int, Adapted | None]]  # to write, one between two steps; see `Executor.write_adapter`
    done: Future[None] = field(default_factory=Future)


class Loop(Generic[LaunchedT]):
    """Runs one executor's sequences, from the queue to their end.

    Args:
        config: of this DP rank, with its own share of the batch.
        turn_times: how long its turns take; None turns speculation off.
    """

    def __init__(self, config: EngineConfig, executor: Executor[LaunchedT], turn_times: TurnTimes | None = None):
        self.config, self.executor, self.turn_times = config, executor, turn_times
        self._arch = executor.arch
        self._scheduler = Scheduler(
            PagePool(executor.pages, reuse=config.prefix_cache),
            config.page_size,
            config.max_batch_size,
            config.max_step_tokens,
            {name: caller.weight for name, caller in config.callers.items()},
        )
        self._table = SlotTable(config.max_batch_size, executor.shape_for(1, 1).max_pages)
        self._answers: dict[Sequence, Answer | PromptTask] = {}
        self._sinks: dict[Sequence, Sink] = {}
        self._by_id: dict[int, Sequence] = {}
        self._news: Outputs = []  # not handed on yet
        self._lock = threading.Condition()
        self._incoming: deque[list[Member]] = deque()
        self._aborted: deque[int] = deque()  # ids of requests
        self._told: deque[Sequence] = deque()  # their matchers, in other processes, have said what follows
        self._changes: list[AdapterChange] = []
        self._changing: list[AdapterChange] = []  # those of them that this turn looks at
        self._queued = 0  # sequences submitted but not yet running
        self._stopping = False
        self._failure: str | None = None
        self._stalled = False  # the last turn had nothing to do but to wait for a mask
        self._turn_began: float | None = None
        self._prompt_tokens = self._generated_tokens = self._scored_tokens = self._embeddings = self._steps = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self._waited_s = 0.0  # time this turn spent waiting for the device
        self._thread = threading.Thread(target=self._run, name="podslice-engine", daemon=True)
        self._thread.start()

    # -- the callers' side --------------------------------------------------------------------------------------

    def submit(self, answers: list[Member]) -> None:
        """Queue requests.

        Raises:
            EngineStopped: the loop has ended.
        """
        with self._lock:
            self.check_open()
            self._queued += len(answers)
            self._incoming.append(answers)
            self._lock.notify()

    def abort(self, ids: Iterable[int]) -> None:
        """End requests; those that this loop does not have are not its concern."""
        with self._lock:
            self._aborted.extend(ids)
            self._lock.notify()

    def change_adapter(self, place: int, layers: Iterable[Adapted | None]) -> Future[None]:
        """Wait until no sequence uses a place, then write an adapter's layers to it, or clear it. The future is done
        then.

        The future fails, and nothing more can be submitted, when the loop ends first (EngineStopped).
        """
        change = AdapterChange(place, deque(enumerate(layers)))
        with self._lock:
            self.check_open()
            self._changes.append(change)
            self._lock.notify()
        return change.done

    def _tell(self, seq: Sequence) -> None:
        """A sequence's next mask has come, or its answer has ended. Called by the thread that reads this."""
        with self._lock:
            self._told.append(seq)
            self._lock.notify()

    def check_open(self) -> None:
        """Raises EngineStopped when nothing more can be submitted."""
        if self._stopping or self._failure:
            raise EngineStopped(self._failure or "the engine is shutting down")

    @property
    def open(self) -> int:
        """Sequences waiting or running."""
        return self._queued + len(self._scheduler.running)

    def stats(self) -> EngineStats:
        scheduler, began = self._scheduler, self._turn_began
        return EngineStats(
            running=len(scheduler.running),
            waiting=self._queued,
            pages_total=scheduler.pool.total - 1,
            pages_used=scheduler.pool.used,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            scored_tokens=self._scored_tokens,
            embeddings=self._embeddings,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            preemptions=scheduler.preemptions,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            compiles_after_ready=self.executor.compiles_after_ready,
            steps=self._steps,
            step_running_s=0.0 if began is None else time.monotonic() - began,
        )

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when the loop is dead or one step has taken longer than the deadline."""
        if self._failure or not self._thread.is_alive():
            raise EngineStopped(self._failure or "the engine loop has ended")
        stuck = self.stats().step_running_s
        if stuck > step_deadline_s:
            raise EngineStopped(f"the engine has been in one step for {stuck:.0f} s (deadline {step_deadline_s:.0f} s)")

    def lose(self, reason: str) -> None:
        """End all open requests for their readers, because the loop is stuck. It ends them itself when it goes on."""
        with self._lock:
            queued = [(seq, sink) for members in self._incoming for seq, _, sink in members]
        lost = [*list(self._sinks.items()), *queued]
        deliver([(sink, last_output(seq, "error", reason)) for seq, sink in lost])

    def shutdown(self) -> None:
        """Stop the loop. Open requests fail with an error that says so."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join(timeout=60)

    # -- the loop's side ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            pending: tuple[list[Work], LaunchedT] | None = None
            while self._take_commands(wait=pending is None):
                began, self._waited_s = time.monotonic(), 0.0
                self._change_adapters()
                running = [] if pending is None else pending[0]
                reads_first = pending is not None and self._reads_first(running)
                if pending is not None and reads_first:
                    self._read(*pending)
                    self._deliver()
                    pending = None
                work = self._scheduler.schedule(self._drafts() if pending is None else {})
                self._clean()
                self._stalled = not work and any(not seq.masked() for seq in self._answers)
                launched = self._launch(work) if work else None
                if pending is not None:
                    self._read(*pending)
                self._deliver()
                pending = launched
                if self.turn_times and work and running and all(item.stop - item.start == 1 for item in running):
                    rows, turn_s = sum(1 + len(item.draft) for item in running), time.monotonic() - began
                    self.turn_times.note(rows, reads_first, turn_s, turn_s - self._waited_s)
                if pending is None and not self._scheduler.running:
                    self._scheduler.check()
        except BaseException as error:  # a panic of a library is no Exception
            log.exception("the engine loop failed")
            self._fail(f"the engine failed: {type(error).__name__}: {error}")
        else:
            self._fail("the engine was shut down")
        finally:
            self.executor.close()

    def _take_commands(self, wait: bool) -> bool:
        """Add new requests and close aborted ones; sleep while there is nothing to do. False: stop the loop."""
        with self._lock:
            idle = wait and not self._scheduler.running and not self._scheduler.waiting and not self._changes
            if idle or (wait and self._stalled):
                self._turn_began = None
                self._lock.wait_for(
                    lambda: self._stopping or self._incoming or self._aborted or self._changes or self._told,
                    timeout=None if idle else 1.0,
                )
            self._turn_began = time.monotonic()
            incoming, self._incoming = self._incoming, deque()
            aborted, self._aborted = self._aborted, deque()
            told, self._told = self._told, deque()
            self._changing = list(self._changes)  # with the sequences that were queued before them
        for answers in incoming:
            for seq, answer, sink in answers:
                self._answers[seq], self._sinks[seq], self._by_id[seq.request.id] = answer, sink, seq
                if isinstance(answer, Answer) and isinstance(answer.matcher, RemoteMatcher):
                    seq.masked = answer.matcher.answered
                    answer.matcher.told = partial(self._tell, seq)
                    told.append(seq)  # it may have ended before
                self._scheduler.add(seq)
        for seq in told:
            held = self._answers.get(seq)
            if isinstance(held, Answer) and held.matcher is not None and held.matcher.ended:
                self._close(seq, held.verdict())
        for id in aborted:
            if (gone := self._by_id.get(id)) is not None:
                self._close(gone, last_output(gone, "abort"))
        self._deliver()
        return not self._stopping

    def _change_adapters(self) -> None:
        """Write one layer of an adapter: more would hold up the answers in progress."""
        for change in self._changing:
            if any(seq.adapter == change.place for seq in self._answers):
                continue
            if change.layers:
                self.executor.write_adapter(change.place, *change.layers.popleft())
            if not change.layers:
                with self._lock:
                    self._changes.remove(change)
                change.done.set_result(None)
            return

    def _reads_first(self, running: list[Work]) -> bool:
        """Whether the next step needs the running one's tokens: because it has drafts, or to draft from them."""
        if any(item.draft for item in running):
            return True
        times = self.turn_times
        return times is not None and bool(draft_lengths(self._scheduler, self.config, times, in_flight=True))

    def _drafts(self) -> dict[Sequence, list[int]]:
        if self.turn_times is None:
            return {}
        wanted = draft_lengths(self._scheduler, self.config, self.turn_times, in_flight=False)
        return {seq: self._answers[seq].plausible(seq.drafted(count)) for seq, count in wanted.items()}

    def _clean(self) -> None:
        if pages := self._scheduler.pool.to_clean():
            self.executor.clean(pages)

    def _launch(self, work: list[Work]) -> tuple[list[Work], LaunchedT]:
        executor = self.executor
        for seq in self._scheduler.entered:
            if not seq.entered_ns:
                seq.entered_ns = time.monotonic_ns()
                self._leave_queue(self._answers[seq])
                entry = TokenOutput(request=seq.request.id, cached_tokens=seq.cached_tokens, entered_ns=seq.entered_ns)
                self._news.append((self._sinks[seq], entry))
            answer = self._answers[seq]
            assert seq.slot is not None  # it has entered
            self._table.enter(seq.slot, {**answer.settings, "adapter": seq.adapter})
            if answer.penalized:
                known = [token for token in seq.tokens if token >= 0]
                executor.start_slot(seq.slot, known[: seq.prompt_len], known[seq.prompt_len :])
        self._scheduler.entered.clear()
        self._deliver()  # now: the step may take long
        drafted = sum(len(item.draft) for item in work)
        tokens = sum(item.stop - item.start for item in work) + drafted
        reads = any(isinstance(self._answers[item.seq], PromptTask) for item in work if not item.decoding)
        shape = executor.shape_for(tokens, len(work) + drafted, reads)
        step, readout = filled(shape, work, self._answers, self._table)
        self._steps += 1
        self._drafted_tokens += drafted
        return work, executor.launch(step, extras(shape, work, self._answers, self._arch.vocab_size), readout)

    def _read(self, work: list[Work], launched: LaunchedT) -> None:
        """Wait for a step's results and pass them on."""
        began = time.monotonic()
        result: Tokens = self.executor.read(launched)
        self._waited_s += time.monotonic() - began
        ids = result.ids.tolist()
        unsound = min(ids) < 0
        for row, item in with_rows(work):
            seq = item.seq
            if unsound and min(ids[row : row + 1 + len(item.draft)]) < 0:  # of a draft that is not taken, too
                for other in self._scheduler.spoil(seq, item.start):
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
            self._scheduler.fill_in(seq, ids[row])
            self._take(seq, answer, result, row)
            for i, drafted in enumerate(item.draft, row):
                if seq.done or ids[i] != drafted:
                    break
                self._accepted_tokens += 1
                if ids[i + 1] < 0:
                    self._fail_answer(seq)
                    break
                self._scheduler.accept(seq, ids[i + 1])
                self._take(seq, answer, result, i + 1)
        self._clean()

    def _take(self, seq: Sequence, answer: Answer | PromptTask, result: Tokens, row: int) -> None:
        """Take a sequence's next token from a row of its step, and finish the sequence if it is the last one."""
        token = int(result.ids[row])
        try:
            output = answer.take(token, result, row)
        except BaseException as error:
            output = failed(seq, error)
        self._generated_tokens += len(output.token_ids)
        self._scored_tokens += len(output.scores)
        self._embeddings += output.embedding is not None
        self._news.append((self._sinks[seq], output))
        if output.finish_reason is not None:
            self._forget(seq)

    def _fail_answer(self, seq: Sequence) -> None:
        """End a sequence whose numbers are not finite."""
        self._scheduler.spoil(seq, seq.computed)
        self._close(seq, last_output(seq, "error", UNSOUND, of_answer=True))

    def _close(self, seq: Sequence, last: TokenOutput) -> None:
        """End a sequence between two steps, with its last output."""
        self._leave_queue(self._answers[seq])
        self._news.append((self._sinks[seq], last))
        self._forget(seq)

    def _forget(self, seq: Sequence) -> None:
        self._scheduler.finish(seq)
        del self._answers[seq], self._sinks[seq], self._by_id[seq.request.id]

    def _leave_queue(self, answer: Answer | PromptTask) -> None:
        if not answer.entered:
            answer.entered = True
            with self._lock:  # submitting threads increment it
                self._queued -= 1

    def _deliver(self) -> None:
        if self._news:
            news, self._news = self._news, []
            deliver(news)

    def _fail(self, reason: str) -> None:
        """Fail every open request with `reason`, so that no reader waits forever."""
        with self._lock:
            self._failure = reason
            incoming, self._incoming = self._incoming, deque()
            changes, self._changes = self._changes, []
        for change in changes:
            change.done.set_exception(EngineStopped(reason))
        queued = [(seq, sink) for answers in incoming for seq, _, sink in answers]
        ended = [(sink, last_output(seq, "error", reason)) for seq, sink in [*self._sinks.items(), *queued]]
        self._answers, self._sinks, self._by_id = {}, {}, {}
        self._turn_began = None
        deliver([*self._news, *ended])


def deliver(outputs: Outputs) -> None:
    """Hand outputs on, those of one sink together, in their order."""
    by_sink: dict[Sink, list[TokenOutput]] = {}
    for sink, output in outputs:
        by_sink.setdefault(sink, []).append(output)
    for sink, theirs in by_sink.items():
        sink(theirs)
