"""Sends an engine's outputs to the client, for all dialects. A dialect's `Writer` turns them into its JSON."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, ClassVar

from starlette.responses import JSONResponse, Response

from apps.llm.chat.events import ArgumentsPiece, CallEnd, CallStart, ChatEvent, ReasoningPiece, TextPiece
from apps.llm.chat.reader import PARAGRAPH
from apps.llm.served.text_stream import TextStream
from apps.llm.served.texts import RequestTexts
from apps.llm.text_api import Output, PieceReader
from apps.serving.ingress.event_stream import EventStream


class PromptsAlone:
    """A source of empty answers, `n` for each prompt, for requests that only want the prompt back."""

    cached_tokens = 0

    def __init__(self, prompts: Sequence[Sequence[int]], n: int):
        self.prompts = prompts
        self.prompt_tokens = sum(map(len, prompts))
        self._answers = len(prompts) * n

    async def outputs(self) -> AsyncIterator[list[Output]]:
        yield [Output(i, "", (), finish_reason="length") for i in range(self._answers)]

    def awaits(self) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Does nothing: there is nothing to free."""


Source = TextStream | PromptsAlone


class Writer(ABC):
    """Writes an answer in a dialect's JSON: streamed, by `events` and `last`, or whole, by `take` and `whole`."""

    streamed_as = "text/event-stream"
    whole_as: ClassVar[type[JSONResponse]] = JSONResponse

    @abstractmethod
    def events(self, outputs: list[Output]) -> bytes:
        """The stream's bytes for a step's outputs; b"" if there is nothing to send."""

    def last(self) -> bytes:
        """The stream's last bytes; b"" for none."""
        return b""

    @abstractmethod
    def failed(self, error: Exception) -> bytes:
        """The last bytes of a stream that fails midway."""

    @abstractmethod
    def take(self, outputs: list[Output]) -> Any:
        """Collects a step's outputs."""

    @abstractmethod
    def whole(self) -> Any:
        """The complete answer's JSON, after the last `take`."""

    def size(self) -> int:
        """About how many characters and numbers the complete answer has, if it can be large."""
        return 0

    def response(self) -> Response:
        """The complete answer. Called in a thread if it is large."""
        return self.whole_as(self.whole())


async def answered(source: Source, writer: Writer, streamed: bool, texts: RequestTexts) -> Response:
    """The response. The source is aborted however the response ends, also when the client disconnects.

    Args:
        texts: of the model; writes a large answer aside.

    Raises:
        EngineError: the request failed before any byte was sent.
    """
    try:
        if streamed:
            pieces = _pieces(source, writer)
            return await EventStream(pieces, writer.failed, writer.streamed_as, source.awaits).begun()
        async for outputs in source.outputs():
            writer.take(outputs)
        return await texts.written(writer.size(), writer.response)
    except BaseException:
        source.abort()
        raise


async def _pieces(source: Source, writer: Writer) -> AsyncGenerator[bytes, None]:
    """Yields one piece of bytes per step. Aborts the source when closed."""
    try:
        async for outputs in source.outputs():
            if news := writer.events(outputs):
                yield news
        if end := writer.last():
            yield end
    finally:
        source.abort()


Block = dict[str, Any]
Event = dict[str, Any]


class BlockWriter(Writer):
    """Writes an answer as a list of blocks of text, reasoning and calls: Anthropic's content, or OpenAI's items.

    Args:
        reader: splits the answer into reasoning, text and calls; None if it is only text.
    """

    def __init__(self, stream: TextStream, reader: PieceReader | None):
        self.stream, self.reader = stream, reader
        self.blocks: list[Block] = []
        self.open: type[TextPiece | ReasoningPiece | CallStart] | None = None
        """Kind of the open block, which is the last one; None if no block is open."""
        self.pieces: list[str] = []
        """Text, reasoning or arguments of the open block."""
        self.tokens = 0

    def read(self, text: str) -> list[ChatEvent]:
        """Parses the answer's next piece of text into events."""
        if self.reader is None:
            return [TextPiece(text)] if text else []
        return self.reader.feed(text)

    def rest(self) -> list[ChatEvent]:
        """The events that the end of the answer completes."""
        return [] if self.reader is None else self.reader.finish()

    def add(self, chat_events: list[ChatEvent], call_status: str = "completed") -> list[Event]:
        """Adds events to the blocks; returns the stream's events. `call_status`: the status of a call that ends."""
        events: list[Event] = []
        for event in chat_events:
            match event:
                case TextPiece(text) | ReasoningPiece(text):
                    if self.open is not type(event):
                        events += [*self.close(), *self.begin(event)]
                        if len(self.blocks) > 1:  # that block keeps it apart already
                            text = text.removeprefix(PARAGRAPH)
                    events.append(self.grow(text))
                case CallStart():
                    events += [*self.close(), *self.begin(event)]
                case ArgumentsPiece(_, text):
                    events.append(self.grow(text))
                case CallEnd():
                    events += self.close(call_status)
        return events

    def begin(self, event: TextPiece | ReasoningPiece | CallStart) -> list[Event]:
        """Opens a block of the event's kind; returns the stream's events."""
        self.blocks.append(self.block(event))
        self.open, self.pieces = type(event), []
        return self.begun()

    def grow(self, text: str) -> Event:
        """Adds text to the open block; returns the stream's event."""
        self.pieces.append(text)
        return self.delta(text)

    def close(self, status: str = "completed") -> list[Event]:
        """Closes the open block, if any; returns the stream's events."""
        if self.open is None:
            return []
        events = self.ended("".join(self.pieces), status)
        self.open = None
        return events

    @abstractmethod
    def block(self, event: TextPiece | ReasoningPiece | CallStart) -> Block:
        """An empty block of the event's kind."""

    @abstractmethod
    def begun(self) -> list[Event]:
        """The stream's events for the start of the last block."""

    @abstractmethod
    def delta(self, text: str) -> Event:
        """The stream's event for more text in the open block."""

    @abstractmethod
    def ended(self, text: str, status: str) -> list[Event]:
        """Stores the open block's complete text in it; returns the stream's events for its end."""
