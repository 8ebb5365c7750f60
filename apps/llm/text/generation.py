"""A submitted request, as its reader sees it, and how the engine's outputs reach it."""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from apps.llm.api import ANYONE, Caller, TokenOutput
from apps.llm.engine.interface import TokenEngine
from apps.llm.text.admission import CallerState
from apps.llm.text.answer import AnswerText, failed
from apps.llm.text_api import Output, SamplingParams
from apps.serving.event_loops import wake


@dataclass(slots=True)
class Times:
    """When a request entered each of its stages, by `time.monotonic_ns`; 0: not yet."""

    grammar: tuple[int, int] | None = None  # start and end of compiling its grammar
    queued: int = 0
    left_queue: int = 0  # its first sequence got a slot
    first_token: int = 0  # was read
    ended: int = 0


class Generation:
    """A submitted request: iterate it (`for` in a thread, `async for` in an event loop) to read its outputs.

    Iteration ends after each of the n sequences has sent its `finish_reason`. A sequence that is scored or embedded has
    just one output. To stop early, call `abort()`: the KV pages are free within one step. Outputs of one step arrive
    together; `drain()` takes all that are ready. To read only the complete result, call `wait()` and then `drain()`.
    """

    queued: "Future[None]"
    """Done when all of it is queued; set when it is submitted."""

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams | None, n: int = 1, caller: Caller = ANYONE):
        self.caller = caller
        self.prompt_ids = tuple(prompt_ids)
        self.params = params  # None: nothing is sampled; `n` suffixes are scored, or a prompt is embedded
        self.n = n if params is None else params.n
        self.times = Times()
        self.cached_tokens = 0  # prompt tokens whose KV pages were found in the prefix cache
        self._answers: list[_Open | None] = [None] * self.n  # those that have not ended
        self._engine: TokenEngine | None = None
        self.usage: CallerState | None = None  # of its caller; None: it is not admitted yet
        self._open = self._running = self.n
        self._ended = threading.Event()
        self._queue: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._wake = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None  # where it is read; None: in a thread

    @property
    def finished(self) -> bool:
        return self._open == 0

    def start(
        self,
        engine: TokenEngine,
        usage: CallerState,
        ids: Sequence[int],
        texts: Sequence[AnswerText | None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        """Take what was admitted; `ids` and `texts` are of its sequences."""
        self._engine, self.usage, self.loop = engine, usage, loop
        self._answers = [_Open(id, text) for id, text in zip(ids, texts, strict=True)]
        self.times.queued = time.monotonic_ns()

    def take(self, index: int, output: TokenOutput) -> int:
        """Take an output of the engine. Returns the new tokens.

        Called by the engine's thread.
        """
        answer, usage = self._answers[index], self.usage
        if answer is None or usage is None:  # its text has ended it before
            return 0
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        if not answer.entered and (output.entered_ns or output.finish_reason):
            answer.entered = True
            self.times.left_queue = self.times.left_queue or output.entered_ns
            usage.left_queue()
        if not output.token_ids and output.finish_reason is None:
            return 0
        try:
            shown = _result(index, output) if answer.text is None else answer.text.take(output)
        except BaseException as error:  # a library's panic is no Exception
            shown = failed(index, error)
        if not self.times.first_token and shown.token_ids:
            self.times.first_token = time.monotonic_ns()
        if shown.finish_reason is not None:
            self._answers[index] = None
            if output.finish_reason is None and self._engine is not None:
                self._engine.abort([answer.id])
        self._put(shown)
        return len(shown.token_ids)

    def _put(self, output: Output) -> None:
        self._queue.put(output)
        if output.finish_reason is not None:
            self._running -= 1
            if not self._running:
                self.times.ended = time.monotonic_ns()
                if self.usage is not None:
                    self.usage.request_ended()
                self._ended.set()

    def refuse(self) -> None:
        """End it unread: it was admitted, but could not be queued."""
        for index, answer in enumerate(self._answers):
            if answer is not None:
                self.take(index, TokenOutput(request=answer.id, finish_reason="abort"))

    def wake(self) -> None:
        """Wake the reader. Called in its event loop."""
        self._wake.set()

    def abort(self) -> None:
        """Stop all of the request's sequences. Thread-safe, and harmless after the end."""
        open_ = [answer.id for answer in self._answers if answer is not None]
        if self._engine is not None and open_:
            self._engine.abort(open_)

    def awaits(self) -> str | None:
        """See `TokenEngine.awaits`."""
        return None if self._engine is None else self._engine.awaits()

    def _read(self, output: Output) -> Output:
        if output.finish_reason is not None:
            self._open -= 1
        return output

    def __iter__(self) -> Iterator[Output]:
        while self._open:
            yield self._read(self._queue.get())

    def wait(self) -> None:
        """Wait until the request has ended. The thread is woken once, not at each token."""
        self._ended.wait()

    def drain(self) -> list[Output]:
        """All outputs that are ready, oldest first; may be empty."""
        outputs = []
        while True:
            try:
                outputs.append(self._read(self._queue.get_nowait()))
            except queue.Empty:
                return outputs

    async def outputs(self, *others: "Generation") -> AsyncIterator[list[Output]]:
        """Outputs as they arrive, in lists of all that are ready: one list a step, or fewer if the reader is slower.

        Args:
            others: read together with this one; their outputs' indices continue after this one's.
        """
        first, rest = self.n, list[tuple[int, Generation]]()
        for generation in others:
            generation._wake = self._wake
            rest.append((first, generation))
            first += generation.n
        while self._open or any(generation._open for _, generation in rest):
            outputs = self.drain()
            for first, generation in rest:
                outputs += [output.moved(first) for output in generation.drain()]
            if outputs:
                yield outputs
            else:
                await self._wake.wait()
                self._wake.clear()

    async def __aiter__(self) -> AsyncIterator[Output]:
        async for outputs in self.outputs():
            for output in outputs:
                yield output


@dataclass(slots=True)
class _Open:
    """A sequence that has not ended."""

    id: int  # of its TokenRequest
    text: AnswerText | None  # None: nothing is sampled
    entered: bool = False  # has left the queue


def _result(index: int, output: TokenOutput) -> Output:
    """The output of what was scored or embedded."""
    return Output(
        index,
        "",
        (),
        finish_reason=output.finish_reason,
        error=output.error,
        of_answer=output.of_answer,
        at_fault=output.at_fault,
        scores=output.scores,
        embedding=None if output.embedding is None else np.frombuffer(output.embedding, np.float32),
    )


class Delivery:
    """Brings the engine's outputs to the answers that they are of.

    Text is made on the way, by the engine's thread while the device computes: a stop string ends an answer also while
    nobody reads it.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[Generation, int]] = {}  # by the id of a request; and which of its answers it is

    def expect(self, ids: Sequence[int], generation: Generation) -> None:
        for index, id in enumerate(ids):
            self._open[id] = generation, index

    def forget(self, ids: Sequence[int]) -> None:
        for id in ids:
            self._open.pop(id, None)

    def sink(self, outputs: list[TokenOutput]) -> None:
        """Take the outputs of one step; see `Sink`."""
        tokens, readers = dict[CallerState, int](), dict[Generation, None]()
        for output in outputs:
            found = self._open.get(output.request)
            if found is None:  # ended by `lose_stuck`
                continue
            generation, index = found
            if (count := generation.take(index, output)) and (usage := generation.usage) is not None:
                tokens[usage] = tokens.get(usage, 0) + count
            if output.token_ids or output.finish_reason is not None:  # not for one that has only left the queue
                readers[generation] = None
            if output.finish_reason is not None:
                self._open.pop(output.request, None)
        for usage, count in tokens.items():
            usage.generated(count)
        wake(readers)
