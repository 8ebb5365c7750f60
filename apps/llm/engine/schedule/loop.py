"""The thread of one DP rank: takes requests from other threads, and has its stepper take one turn after another."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Generic

from apps.llm.api import CacheNews, EngineStats, EngineStopped
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.executor_protocol import Executor, LaunchedT
from apps.llm.engine.grammar.remote_matcher import RemoteMatcher
from apps.llm.engine.schedule.adapter_changes import AdapterChange
from apps.llm.engine.schedule.answer import Answer, last_output
from apps.llm.engine.schedule.delivery import deliver
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.schedule.stepper import Member, Stepper
from apps.llm.engine.speculation.choice import TurnTimes
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


class Loop(Generic[LaunchedT]):
    """Runs one executor's sequences in a thread of its own.

    Args:
        config: of this DP rank, with its own share of the batch.
        turn_times: how long its turns take; None turns speculation off.
    """

    def __init__(self, config: EngineConfig, executor: Executor[LaunchedT], turn_times: TurnTimes | None = None):
        self.executor = executor
        self.stepper = Stepper(config, executor, turn_times)
        self._lock = threading.Condition()
        self._incoming: deque[list[Member]] = deque()
        self._aborted: deque[int] = deque()  # ids of requests
        self._told: deque[Sequence] = deque()  # their matchers, in other processes, have said what follows
        self._changes: deque[AdapterChange] = deque()
        self._arriving = 0  # sequences submitted that the stepper does not have yet
        self._stopping = False
        self._failure: str | None = None
        self._turn_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="podslice-engine", daemon=True)
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
            self._incoming.append(members)
            self._lock.notify()

    def abort(self, ids: Iterable[int]) -> None:
        """End requests; those that this loop does not have are not its concern."""
        with self._lock:
            self._aborted.extend(ids)
            self._lock.notify()

    def change_adapter(self, index: int, layers: Iterable[Adapted | None]) -> Future[None]:
        """Wait until no sequence uses an adapter's index, then write its layers there, or clear it. The future is done
        then.

        The future fails, and nothing more can be submitted, when the loop ends first (EngineStopped).
        """
        change = AdapterChange.of(index, layers)
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
        return self._arriving + self.stepper.queued + len(self.stepper.scheduler.running)

    def stats(self) -> EngineStats:
        began = self._turn_began
        return self.stepper.stats(self._arriving, 0.0 if began is None else time.monotonic() - began)

    def cache_news(self, since: int) -> CacheNews:
        """What the prefix cache has stored and forgotten since the news of this number; 0: all that it has."""
        return self.stepper.scheduler.pool.news.since(since)

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
            arriving = [member for members in self._incoming for member in members]
        lost = self.stepper.open(arriving)
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
            while self._take_commands():
                self.stepper.step()
        except BaseException as error:  # a panic of a library is no Exception
            log.exception("the engine loop failed")
            self._fail(f"the engine failed: {type(error).__name__}: {error}")
        else:
            self._fail("the engine was shut down")
        finally:
            self.executor.close()

    def _take_commands(self) -> bool:
        """Pass on what other threads have asked for; sleep while there is nothing to do. False: stop the loop."""
        stepper = self.stepper
        with self._lock:
            if stepper.idle or stepper.must_wait:
                self._turn_began = None
                self._lock.wait_for(
                    lambda: self._stopping or self._incoming or self._aborted or self._changes or self._told,
                    timeout=None if stepper.idle else 1.0,
                )
            self._turn_began = time.monotonic()
            incoming, self._incoming = self._incoming, deque()
            aborted, self._aborted = self._aborted, deque()
            told, self._told = self._told, deque()
            changes, self._changes = self._changes, deque()
        for members in incoming:
            self._add(members, told)
        stepper.close_ended(told)
        stepper.abort(aborted)
        stepper.adapter_changes.add(changes)
        return not self._stopping

    def _add(self, members: list[Member], told: deque[Sequence]) -> None:
        for seq, answer, _ in members:
            if isinstance(answer, Answer) and isinstance(answer.matcher, RemoteMatcher):
                seq.masked = answer.matcher.answered
                answer.matcher.told = partial(self._tell, seq)
                told.append(seq)  # it may have ended before
        self.stepper.add(members)
        with self._lock:  # submitting threads increment it
            self._arriving -= len(members)

    def _fail(self, reason: str) -> None:
        """Fail every open request with `reason`, so that no reader waits forever."""
        with self._lock:
            self._failure = reason
            incoming, self._incoming = self._incoming, deque()
            changes, self._changes = self._changes, deque()
        self._turn_began = None
        self.stepper.adapter_changes.add(changes)
        self.stepper.fail(reason, [member for members in incoming for member in members])
