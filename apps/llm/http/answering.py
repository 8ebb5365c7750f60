"""One way of answering for all dialects: what the engine puts out goes to a writer, which knows a dialect's JSON."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, ClassVar

from starlette.responses import JSONResponse, Response

from apps.llm.api import Output
from apps.llm.chat.events import ArgumentsPiece, CallBegins, CallEnds, ChatEvent, Reasoned, SaidText
from apps.llm.chat.reader import AnswerReader
from apps.llm.engine_model import EngineStream
from apps.serving.ingress.bodies import EventStream


class PromptsAlone:
    """Prompts that nothing is to follow, `n` times each."""

    cached_tokens = 0

    def __init__(self, prompts: Sequence[Sequence[int]], n: int):
        self.prompt_tokens = sum(map(len, prompts))
        self._answers = len(prompts) * n

    async def batches(self) -> AsyncIterator[list[Output]]:
        yield [Output(i, "", (), finish_reason="length") for i in range(self._answers)]

    def abort(self) -> None:
        """There is nothing to free."""


Source = EngineStream | PromptsAlone


class Writer(ABC):
    """A request's answer in a dialect's own JSON: streamed by `events` and `last`, or whole by `take` and `whole`."""

    streamed_as = "text/event-stream"
    whole_as: ClassVar[type[JSONResponse]] = JSONResponse

    @abstractmethod
    def events(self, outputs: list[Output]) -> bytes:
        """What a stream says of a step's news; b"" if there is nothing to see."""

    def last(self) -> bytes:
        """How a stream ends; b"" if nothing is said."""
        return b""

    @abstractmethod
    def failed(self, error: Exception) -> bytes:
        """How a stream ends that fails on its way."""

    @abstractmethod
    def take(self, outputs: list[Output]) -> Any:
        """Notes a step's news."""

    @abstractmethod
    def whole(self) -> Any:
        """The answer's JSON, once all is noted."""


async def answered(source: Source, writer: Writer, streamed: bool) -> Response:
    """The answer. However it ends, also by a client that leaves, the source is aborted.

    Raises:
        EngineError: it fails before anything of it was sent.
    """
    try:
        if streamed:
            return await EventStream(_pieces(source, writer), writer.failed, writer.streamed_as).begun()
        async for outputs in source.batches():
            writer.take(outputs)
        return writer.whole_as(writer.whole())
    except BaseException:
        source.abort()
        raise


async def _pieces(source: Source, writer: Writer) -> AsyncGenerator[bytes, None]:
    """One piece of bytes for all that a step brings. Aborts what is unread when it is closed."""
    try:
        async for outputs in source.batches():
            if news := writer.events(outputs):
                yield news
        if end := writer.last():
            yield end
    finally:
        source.abort()


Block = dict[str, Any]
Event = dict[str, Any]


class BlockWriter(Writer):
    """An answer as a list of blocks of text, reasoning and calls: Anthropic's content, or OpenAI's items.

    Args:
        reader: None: the answer is text, and nothing else.
    """

    def __init__(self, stream: EngineStream, reader: AnswerReader | None):
        self.stream, self.reader = stream, reader
        self.blocks: list[Block] = []
        self.open: type[SaidText | Reasoned | CallBegins] | None = None
        """What the last block is, as long as it grows."""
        self.pieces: list[str] = []
        """Text, reasoning or arguments of the block that is open."""
        self.tokens = 0

    def read(self, text: str) -> list[ChatEvent]:
        """What the model says with this text."""
        if self.reader is None:
            return [SaidText(text)] if text else []
        return self.reader.feed(text)

    def rest(self) -> list[ChatEvent]:
        """What is left to say at the answer's end."""
        return [] if self.reader is None else self.reader.finish()

    def told(self, news: list[ChatEvent], ends: str = "completed") -> list[Event]:
        """Notes what the model says; returns what a stream says of it. `ends`: the status of a call that ends."""
        told: list[Event] = []
        for event in news:
            match event:
                case SaidText(text) | Reasoned(text):
                    if self.open is not type(event):
                        told += [*self.close(), *self.begin(event)]
                    told.append(self.grow(text))
                case CallBegins():
                    told += [*self.close(), *self.begin(event)]
                case ArgumentsPiece(_, text):
                    told.append(self.grow(text))
                case CallEnds():
                    told += self.close(ends)
        return told

    def begin(self, event: SaidText | Reasoned | CallBegins) -> list[Event]:
        """A block for what begins with the event."""
        self.blocks.append(self.block(event))
        self.open, self.pieces = type(event), []
        return self.begun()

    def grow(self, text: str) -> Event:
        """Of the block that is open."""
        self.pieces.append(text)
        return self.delta(text)

    def close(self, status: str = "completed") -> list[Event]:
        """The end of the block that is open, if one is."""
        if self.open is None:
            return []
        told = self.ended("".join(self.pieces), status)
        self.open = None
        return told

    @abstractmethod
    def block(self, event: SaidText | Reasoned | CallBegins) -> Block:
        """An empty block of the event's kind."""

    @abstractmethod
    def begun(self) -> list[Event]:
        """What a stream says of a block that has begun."""

    @abstractmethod
    def delta(self, text: str) -> Event:
        """What a stream says of more text in the open block."""

    @abstractmethod
    def ended(self, text: str, status: str) -> list[Event]:
        """Puts all of its text into the open block; returns what a stream says of its end."""
