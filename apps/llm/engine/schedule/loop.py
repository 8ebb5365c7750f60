"""The thread of one DP rank: takes requests from other threads, and has its stepper take one turn after another."""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Generic

from apps.llm.api import CacheNews, EngineStats
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.executor_protocol import Executor, LaunchedT
from apps.llm.engine.grammar.remote_matcher import RemoteMatcher
from apps.llm.engine.kv_events.feed import PageFeed
from apps.llm.engine.schedule.adapter_changes import AdapterChange
from apps.llm.engine.schedule.answer import Answer, last_output
from apps.llm.engine.schedule.delivery import deliver
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.schedule.stepper import Member, Stepper
from apps.llm.engine.speculation.choice import TurnTimes
from apps.serving.engine_thread import EngineThread, drained
from ray_configs.llm import EngineConfig


class Loop(EngineThread, Generic[LaunchedT]):
    """Runs one executor's sequences in a thread of its own.

    Args:
        config: of this DP rank, with its own share of the batch.
        turn_times: how long its turns take; None turns speculation off.
    """

    def __init__(self, config: EngineConfig, executor: Executor[LaunchedT], turn_times: TurnTimes | None = None):
        super().__init__()
        self.executor = executor
        self.stepper = Stepper(config, executor, turn_times)
        self._incoming: deque[Member] = deque()
        self._aborted: deque[int] = deque()  # ids of requests
        self._told: deque[Sequence] = deque()  # their matchers, in other processes, have said what follows
        self._changes: deque[AdapterChange] = deque()
        self._arriving = 0  # sequences submitted that the stepper does not have yet
        self._thread.start()

    # -- the callers' side --------------------------------------------------------------------------------------

    def submit(self, members: list[Member]) -> None:
        """Queue requests.

        Raises:
            EngineStopped: the loop has ended.
        """
        with self._lock:
            self.check_open()
            self._arriving += len(members)
            self._ask(self._incoming, members)

    def abort(self, ids: Iterable[int]) -> None:
        """End requests; those that this loop does not have are not its concern."""
        self._ask(self._aborted, ids)

    def change_adapter(self, index: int, layers: Iterable[Adapted | None]) -> Future[None]:
        """Wait until no sequence uses an adapter's index, then write its layers there, or clear it. The future is done
        then.

        The future fails, and nothing more can be submitted, when the loop ends first (EngineStopped).
        """
        change = AdapterChange.of(index, layers)
        with self._lock:
            self.check_open()
            self._ask(self._changes, [change])
        return change.done

    def _tell(self, seq: Sequence) -> None:
        """A sequence's next mask has come, or its answer has ended. Called by the thread that reads this."""
        self._ask(self._told, [seq])

    @property
    def open(self) -> int:
        """Sequences waiting or running; 0 once the loop has ended, which ends them."""
        if self._failure:
            return 0
        return self._arriving + self.stepper.queued + len(self.stepper.scheduler.running)

    def stats(self) -> EngineStats:
        return self.stepper.stats(self._arriving, self.step_running_s)

    def page_feed(self) -> PageFeed:
        """Events of the prefix cache from now on. Ask once, before the first request."""
        feed = self.stepper.scheduler.pool.news.feed = PageFeed(self.stepper.config.page_size)
        return feed

    def cache_news(self, since: int) -> CacheNews:
        """What the prefix cache has stored and forgotten since the news of this number; 0: all that it has."""
        return self.stepper.scheduler.pool.news.since(since)

    def lose(self, reason: str) -> None:
        """End all open requests for their readers, because the loop is stuck. It ends them itself when it goes on."""
        with self._lock:
            arriving = list(self._incoming)
        lost = self.stepper.open(arriving)
        deliver([(sink, last_output(seq, "error", reason)) for seq, sink in lost])

    # -- the loop's side ----------------------------------------------------------------------------------------

    def _rest(self) -> None:
        if self.stepper.idle:
            self._sleep()
        elif self.stepper.must_wait:
            self._sleep(1.0)  # requests may have deadlines

    def _take(self) -> None:
        self._add(list(drained(self._incoming)))
        self.stepper.close_ended(drained(self._told))
        self.stepper.abort(drained(self._aborted))
        self.stepper.adapter_changes.add(drained(self._changes))

    def _add(self, members: list[Member]) -> None:
        for seq, answer, _ in members:
            if isinstance(answer, Answer) and isinstance(answer.matcher, RemoteMatcher):
                seq.masked = answer.matcher.answered
                answer.matcher.told = partial(self._tell, seq)
                self._told.append(seq)  # it may have ended before
        self.stepper.add(members)
        with self._lock:  # submitting threads increment it
            self._arriving -= len(members)

    def _turn(self) -> None:
        self.stepper.step()

    def _end(self, reason: str) -> None:
        try:
            self.stepper.adapter_changes.add(drained(self._changes))
            self.stepper.fail(reason, drained(self._incoming))
        finally:
            self.executor.close()
