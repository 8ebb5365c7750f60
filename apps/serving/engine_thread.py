"""The thread of an engine: takes what other threads ask of it, then has it take a turn, again and again."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from apps.serving.errors import EngineStopped

log = logging.getLogger("podslice")

T = TypeVar("T")


class EngineThread(ABC):
    """Runs an engine's turns in a thread of its own, which sleeps while there is nothing to do.

    A subclass has a queue for each kind of thing that callers ask for, and starts `_thread` when it is complete.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._asked = self._stopping = False
        self._failure: str | None = None
        self._turn_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="podslice-engine", daemon=True)

    # -- the callers' side --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises EngineStopped when nothing more can be submitted."""
        if self._stopping or self._failure:
            raise EngineStopped(self._failure or "the engine is shutting down")

    def _ask(self, queue: deque[T], things: Iterable[T]) -> None:
        with self._lock:
            queue.extend(things)
            self._asked = True
            self._lock.notify()

    @property
    def step_running_s(self) -> float:
        """How long the current turn has taken so far; 0 when idle."""
        began = self._turn_began
        return 0.0 if began is None else time.monotonic() - began

    def check(self, step_deadline_s: float = 300.0) -> None:
        """Raises EngineStopped when the thread has ended, or one turn has taken longer than the deadline."""
        if self._failure or not self._thread.is_alive():
            raise EngineStopped(self._failure or "the engine's loop has ended")
        stuck = self.step_running_s
        if stuck > step_deadline_s:
            raise EngineStopped(f"the engine has been in one step for {stuck:.0f} s (deadline {step_deadline_s:.0f} s)")

    def shutdown(self) -> None:
        """End the thread. What is still open fails with an error that says so."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join(timeout=60)

    # -- the thread's side --------------------------------------------------------------------------------------

    @abstractmethod
    def _rest(self) -> None:
        """`_sleep` if a turn would do nothing. Called with the lock held."""

    @abstractmethod
    def _take(self) -> None:
        """Empty the queues, of which some thread has filled one."""

    @abstractmethod
    def _turn(self) -> None:
        """One turn. It raises only what nothing can go on after."""

    @abstractmethod
    def _end(self, reason: str) -> None:
        """Fail all that is open or queued, so that no reader waits forever. Nothing follows."""

    def _sleep(self, timeout_s: float | None = None) -> None:
        self._turn_began = None
        self._lock.wait_for(lambda: self._stopping or self._asked, timeout_s)

    def _run(self) -> None:
        reason = "the engine was shut down"
        try:
            while not self._stopped():
                self._turn()
        except BaseException as error:  # a panic of a library is no Exception
            log.exception("the engine failed")
            reason = f"the engine failed: {type(error).__name__}: {error}"
        with self._lock:
            self._failure = reason
        self._turn_began = None
        self._end(reason)

    def _stopped(self) -> bool:
        """Whether to stop. Sleeps while there is nothing to do, and takes what has been asked for."""
        with self._lock:
            self._rest()
            self._turn_began = time.monotonic()
            asked, self._asked = self._asked, False
        if asked:
            self._take()
        return self._stopping


def drained(queue: deque[T]) -> Iterator[T]:
    """What a queue has, oldest first; takes it out. Other threads may add to it meanwhile."""
    while queue:
        yield queue.popleft()
