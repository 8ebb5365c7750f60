"""Answers of Anthropic's messages API, as one JSON object or as server-sent events."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from apps.llm.chat.events import CallStart, ReasoningPiece, TextPiece
from apps.llm.http.answering import Block, BlockWriter, Event
from apps.llm.served.text_stream import TextStream
from apps.llm.text_api import Output, PieceReader
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.openai_errors import of_stream

PING_S = 10.0
"""Silence on a stream after which it sends a ping."""


DELTAS = {
    TextPiece: ("text_delta", "text"),
    ReasoningPiece: ("thinking_delta", "thinking"),
    CallStart: ("input_json_delta", "partial_json"),
}
"""Type and text field of the delta for each kind of block."""


class MessageWriter(BlockWriter):
    """One answer.

    Args:
        reader: splits the answer into reasoning, text and calls; None if it is only text.
        context: maximum tokens of prompt and answer together.
    """

    def __init__(self, model: str, stream: TextStream, reader: PieceReader | None, context: int):
        super().__init__(stream, reader)
        self.id = f"msg_{uuid.uuid4().hex}"
        self._model, self._context = model, context
        self._end: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._sent_s = 0.0

    def events(self, outputs: list[Output]) -> bytes:
        start = [] if self._sent_s else [{"type": "message_start", "message": self.whole()}]
        news = start + self.take(outputs)
        now = time.monotonic()
        if not news and now - self._sent_s > PING_S:
            news = [{"type": "ping"}]
        if news:
            self._sent_s = now
        return _written(news)

    def last(self) -> bytes:
        end = {"type": "message_delta", "delta": self._end, "usage": self._usage()}
        return _written([end, {"type": "message_stop"}])

    def failed(self, error: Exception) -> bytes:
        return anthropic_errors.event(of_stream(error))

    def whole(self) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": list(self.blocks), **self._end, "usage": self._usage()}

    def take(self, outputs: list[Output]) -> list[Event]:
        """Collects a step's outputs; returns the stream's events."""
        last = outputs[-1]
        self.tokens += sum(len(output.token_ids) for output in outputs)
        events = self.add(self.read("".join(output.text for output in outputs)))
        if last.finish_reason is not None:
            events += [*self.add(self.rest()), *self.close()]
            self._end = self._why(last)
        return events

    def block(self, event: TextPiece | ReasoningPiece | CallStart) -> Block:
        match event:
            case TextPiece():
                return {"type": "text", "text": ""}
            case ReasoningPiece():
                return {"type": "thinking", "thinking": "", "signature": ""}
            case CallStart(_, name):
                return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": name, "input": {}}

    def begun(self) -> list[Event]:
        return [{"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(self.blocks[-1])}]

    def delta(self, text: str) -> Event:
        kind, field = DELTAS[self.open or TextPiece]
        return self._delta({"type": kind, field: text})

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    def ended(self, text: str, status: str) -> list[Event]:
        block, stop = self.blocks[-1], {"type": "content_block_stop", "index": len(self.blocks) - 1}
        if self.open is TextPiece:
            block["text"] = text
        elif self.open is CallStart:
            block["input"] = _object(text)
        else:  # clients send back only signed thinking; this server does not check the signature
            block |= {"thinking": text, "signature": self.id}
            return [self._delta({"type": "signature_delta", "signature": self.id}), stop]
        return [stop]

    def _why(self, last: Output) -> dict[str, Any]:
        """`stop_reason` and `stop_sequence` of an ended answer."""
        reason, sequence = "end_turn", None
        if isinstance(last.stop_reason, str):
            reason, sequence = "stop_sequence", last.stop_reason
        elif last.finish_reason == "length":
            full = self.stream.prompt_tokens + self.tokens >= self._context
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif self.reader is not None and self.reader.called:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self) -> dict[str, int]:
        """Anthropic's usage: the first three fields add up to the prompt's tokens."""
        cached = self.stream.cached_tokens
        return {
            "input_tokens": self.stream.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.tokens,
        }


def _written(events: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _object(arguments: str) -> dict[str, Any]:
    """A call's arguments; the complete part if they are cut short, {} if they are not a JSON object."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
