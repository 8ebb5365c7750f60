"""Threads for long texts, apart from the event loop's, shared fairly by callers.

Tokenizing a text of megabytes takes seconds, without the GIL. The threads are few, and one caller has at most half of
them, so that another's text waits for no more than one piece of work of each caller before it.
"""

import asyncio
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from apps.llm.api import Caller, QueueFull

T = TypeVar("T")
Going = Callable[[], None]
"""Asked between two pieces of work: raises CancelledError once nobody waits for it any more."""

THREADS = max(2, min(8, (os.cpu_count() or 2) // 4))
MOST_WAITING = 64
"""Texts of one caller that may wait for a thread."""


class FairThreads:
    """Runs work for callers, each in turn: first those in the foreground, then those in the background."""

    def __init__(self, threads: int = THREADS):
        self._threads, self._share = threads, max(1, threads // 2)
        self._changed = threading.Condition()
        self._started = 0
        self._waiting: OrderedDict[Caller, deque[tuple[Future[None], Callable[[], None]]]] = OrderedDict()
        self._running: Counter[Caller] = Counter()

    async def run(self, caller: Caller, work: Callable[[Going], T], refused: bool = True) -> T:
        """The result of `work`. Cancelled, it is ended before its next piece, or never begun.

        Args:
            refused: whether work is refused while much of its caller's is waiting.

        Raises:
            QueueFull: too much of this caller's work is waiting.
        """
        gone, result = threading.Event(), list[T]()

        def going() -> None:
            if gone.is_set():
                raise CancelledError

        job = self._queue(caller, lambda: result.append(work(going)), refused)
        try:
            await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            gone.set()
            self._forget(caller, job)
            raise
        return result[0]

    def _queue(self, caller: Caller, call: Callable[[], None], refused: bool) -> "Future[None]":
        job: Future[None] = Future()
        with self._changed:
            theirs = self._waiting.setdefault(caller, deque())
            if refused and len(theirs) >= MOST_WAITING and not caller.background:
                raise QueueFull(f"{len(theirs)} long texts of this caller are waiting to be tokenized")
            theirs.append((job, call))
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._work, name="podslice-texts", daemon=True).start()
            self._changed.notify()
        return job

    def _forget(self, caller: Caller, job: "Future[None]") -> None:
        """Drop work that nobody waits for, and the text that it holds."""
        with self._changed:
            theirs = deque(pair for pair in self._waiting.get(caller, ()) if pair[0] is not job)
            if theirs:
                self._waiting[caller] = theirs
            else:
                self._waiting.pop(caller, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None)
                caller = self._next()
                assert caller is not None
                job, call = self._waiting[caller].popleft()
                if self._waiting[caller]:
                    self._waiting.move_to_end(caller)
                else:
                    del self._waiting[caller]
                self._running[caller] += 1
            try:
                if job.set_running_or_notify_cancel():
                    call()
                    job.set_result(None)
            except BaseException as error:  # also a library's panic, which is no Exception
                job.set_exception(error)
            job = call = None  # type: ignore[assignment]  # they hold a text
            with self._changed:
                self._running[caller] -= 1
                self._running += Counter()  # without those at 0
                self._changed.notify_all()

    def _next(self) -> Caller | None:
        """Whose turn it is; None if nobody may begin anything."""
        ready = [caller for caller in self._waiting if self._running[caller] < self._share]
        return next((caller for caller in ready if not caller.background), ready[0] if ready else None)
