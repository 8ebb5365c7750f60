"""A request for pictures as its caller sees it: a stream of events, and `abort`."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from apps.serving.errors import EngineError
from apps.stable_diffusion.engine.request import PictureRequest


class PictureFailed(EngineError, RuntimeError):
    """This request failed in the model, but others did not; the message says why."""


class Aborted(EngineError, RuntimeError):
    """The job was aborted before its end."""

    status, code, says = 503, "interrupted", "The job was interrupted."
    retry_after_s = 1.0


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The job is in the queue. Comes once, first."""

    ahead: int  # pictures ahead of it, running or waiting


@dataclass(frozen=True, slots=True)
class Step:
    """A picture is at step `step` of `steps`. When steps are fast, some are not reported."""

    picture: int  # which of the job's
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Preview:
    """An unfinished picture, as if its remaining noise were removed at once."""

    picture: int
    number: int  # which of the picture's previews, from 0
    step: int
    steps: int
    pixels: np.ndarray  # [height, width, 3] uint8


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished picture, sent as soon as it is done, whatever the state of the job's others."""

    picture: int
    pixels: np.ndarray  # [height, width, 3] uint8
    request: PictureRequest
    steps: int  # denoising steps that were run
    warnings: tuple[str, ...]
    seconds: float  # since the job was submitted


Event = QueuePosition | Step | Preview | Finished
End = Literal["finished", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class _Ended:
    end: End
    error: Exception | None = None


class PictureJob:
    """Submitted pictures: iterate it (`for` in a thread, `async for` in an event loop) to read its events.

    The iteration ends when all pictures are finished; it raises RequestError, PictureFailed or EngineStopped if the
    job failed, and Aborted if it was aborted. A reader that stops earlier must call `abort()`.
    """

    def __init__(
        self,
        requests: Sequence[PictureRequest],
        previews: int = 0,
        engine: Any = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ):
        self.requests, self.previews = tuple(requests), previews
        self.loop = loop
        self.end: End | None = None  # set once, by the engine
        self.leaving = False  # aborted
        self.lost = False  # see `lose`
        self.steps_done = [0] * len(self.requests)
        self.steps_total = [request.num_inference_steps for request in self.requests]  # as far as known
        self.pictures_done = 0
        self._engine = engine
        self._queue: queue.SimpleQueue[Event | _Ended] = queue.SimpleQueue()
        self._wake = asyncio.Event()

    def abort(self) -> None:
        """Stop its pictures between two steps; safe from any thread, and after the end."""
        if self.end is None and not self.leaving:
            self.leaving = True
            if self._engine is not None:
                self._engine.abort(self)

    # -- the engine's side --------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        match event:
            case Step():
                self.steps_done[event.picture], self.steps_total[event.picture] = event.step, event.steps
            case Finished():
                self.pictures_done += 1
        self._queue.put(event)

    def close(self, end: End, error: Exception | None = None) -> None:
        """End the job. Must be called only once."""
        if self.end is not None:
            raise RuntimeError(f"the job has already ended: {self.end}")
        self.end = end
        self._queue.put(_Ended(end, error))

    def lose(self, error: EngineError) -> None:
        """End the job for its reader: the engine is stuck. Thread-safe. The engine still ends it when it goes on."""
        if self.end is None and not self.lost:
            self.lost = True
            self._queue.put(_Ended("failed", error))

    def wake(self) -> None:
        """Called in the event loop after `put` and `close`."""
        self._wake.set()

    # -- the reader's side --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Event]:
        while (event := self._open(self._queue.get())) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            try:
                event = self._open(self._queue.get_nowait())
            except queue.Empty:
                await self._wake.wait()
                self._wake.clear()
                continue
            if event is None:
                return
            yield event

    @staticmethod
    def _open(event: Event | _Ended) -> Event | None:
        """The event; None at the end of a finished job. Raises the error of a failed or aborted one."""
        if not isinstance(event, _Ended):
            return event
        if event.error is not None:
            raise event.error
        if event.end == "aborted":
            raise Aborted("the job was aborted")
        return None
