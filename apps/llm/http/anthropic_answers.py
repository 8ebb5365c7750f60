"""How Anthropic's messages are written, whole or as server-sent events."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from apps.llm.api import Output
from apps.llm.chat.events import ArgumentsPiece, CallBegins, CallEnds, ChatEvent, Reasoned, SaidText
from apps.llm.chat.reader import AnswerReader
from apps.llm.engine_model import EngineStream

PING_S = 10.0
"""A stream that has nothing to show for so long says that it lives."""


class MessageWriter:
    """One answer.

    Args:
        reader: None: the answer is text, and nothing else.
        context: tokens of prompt and answer together, at most.
    """

    def __init__(self, model: str, stream: EngineStream, reader: AnswerReader | None, context: int):
        self.id = f"msg_{uuid.uuid4().hex}"
        self._model, self._stream, self._reader, self._context = model, stream, reader, context
        self._blocks: list[dict[str, Any]] = []
        self._arguments: list[str] = []  # of the call that is open
        self._open = False  # the last block is
        self._tokens = 0
        self._end: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._told_s = 0.0

    def events(self, outputs: Sequence[Output]) -> bytes:
        """The server-sent events of a step's news; b"" if there is nothing to see."""
        start = [] if self._told_s else [{"type": "message_start", "message": self.whole()}]
        news = start + self.take(outputs)
        now = time.monotonic()
        if not news and now - self._told_s > PING_S:
            news = [{"type": "ping"}]
        if news:
            self._told_s = now
        return _written(news)

    def last_events(self) -> bytes:
        end = {"type": "message_delta", "delta": self._end, "usage": self._usage()}
        return _written([end, {"type": "message_stop"}])

    def whole(self) -> dict[str, Any]:
        """What there is of the message."""
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": list(self._blocks), **self._end, "usage": self._usage()}

    def take(self, outputs: Sequence[Output]) -> list[dict[str, Any]]:
        """Notes a step's news; returns what a stream says of them."""
        text, last = "".join(output.text for output in outputs), outputs[-1]
        self._tokens += sum(len(output.token_ids) for output in outputs)
        news: list[ChatEvent] = [SaidText(text)] if text else []
        if self._reader is not None:
            news = self._reader.feed(text)
            if last.finish_reason is not None:
                news += self._reader.finish()
        told = [said for event in news for said in self._take(event)]
        if last.finish_reason is not None:
            told += self._close()
            self._end = self._why(last)
        return told

    def _take(self, event: ChatEvent) -> list[dict[str, Any]]:
        match event:
            case SaidText(text):
                begun = self._within({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                return [*begun, self._delta({"type": "text_delta", "text": text})]
            case Reasoned(text):
                begun = self._within({"type": "thinking", "thinking": "", "signature": ""})
                self._blocks[-1]["thinking"] += text
                return [*begun, self._delta({"type": "thinking_delta", "thinking": text})]
            case CallBegins(_, name):
                call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": name, "input": {}}
                return [*self._close(), self._begin(call)]
            case ArgumentsPiece(_, text):
                self._arguments.append(text)
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnds():
                return self._close()

    def _within(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        """What makes the last block one of this type."""
        if self._open and self._blocks[-1]["type"] == block["type"]:
            return []
        return [*self._close(), self._begin(block)]

    def _begin(self, block: dict[str, Any]) -> dict[str, Any]:
        self._blocks.append(block)
        self._open = True
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if not self._open:
            return []
        block, told = self._blocks[-1], []
        if block["type"] == "thinking":  # clients send back only what is signed; nothing here checks it
            block["signature"] = self.id
            told = [self._delta({"type": "signature_delta", "signature": self.id})]
        elif block["type"] == "tool_use":
            block["input"] = _object("".join(self._arguments))
            self._arguments = []
        self._open = False
        return [*told, {"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _why(self, last: Output) -> dict[str, Any]:
        """How the answer has ended."""
        reason, sequence = "end_turn", None
        if isinstance(last.stop_reason, str):
            reason, sequence = "stop_sequence", last.stop_reason
        elif last.finish_reason == "length":
            full = self._stream.prompt_tokens + self._tokens >= self._context
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif self._reader is not None and self._reader.called:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self) -> dict[str, int]:
        """As Anthropic counts: the prompt's tokens are those of the first three together."""
        cached = self._stream.cached_tokens
        return {
            "input_tokens": self._stream.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._tokens,
        }


def _written(events: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _object(arguments: str) -> dict[str, Any]:
    """A call's arguments; what there is of them where they are cut short, {} where the model wrote no JSON."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
