"""How a response is written, whole or as server-sent events."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from apps.llm.api import Output
from apps.llm.chat.events import ArgumentsPiece, CallBegins, CallEnds, ChatEvent, Reasoned, SaidText
from apps.llm.chat.reader import AnswerReader
from apps.llm.engine_model import EngineStream
from apps.llm.http.responses.items import new_id
from apps.serving.ingress.openai_errors import OpenAIError

Event = dict[str, Any]
PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The one content part of an item of each type."""


class ResponseWriter:
    """One response.

    Args:
        about: what it says of its request.
        reader: None: the answer is text, and nothing else.
    """

    def __init__(self, model: str, about: Mapping[str, Any], stream: EngineStream, reader: AnswerReader | None):
        self.id = new_id("resp")
        head = {"id": self.id, "object": "response", "created_at": int(time.time()), "model": model}
        self._head: dict[str, Any] = {**head, **about}
        self._stream, self._reader = stream, reader
        self.output: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # text, reasoning or arguments of the item that is open
        self._open = False  # the last item is
        self._tokens = self._reasoning_tokens = 0
        self._end: dict[str, Any] = {"status": "in_progress", "error": None, "incomplete_details": None}
        self._sent = 0  # events

    # -- streamed -----------------------------------------------------------------------------------------------

    def events(self, outputs: Sequence[Output]) -> bytes:
        """The server-sent events of a step's news; b"" if there is nothing to see."""
        begin = [] if self._sent else [self._state("created"), self._state("in_progress")]
        return self._written(begin + self.take(outputs))

    def last_event(self) -> bytes:
        return self._written([self._state(self._end["status"])])

    def failed(self, error: OpenAIError) -> bytes:
        """The last event of an answer that fails on its way."""
        told = self._close("incomplete")
        self._end |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return self._written([*told, self._state("failed")])

    def _state(self, state: str) -> Event:
        return {"type": f"response.{state}", "response": self.whole()}

    def _written(self, events: Sequence[Event]) -> bytes:
        text = []
        for event in events:
            text.append(f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': self._sent})}\n\n")
            self._sent += 1
        return "".join(text).encode()

    # -- whole --------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """What there is of the response."""
        done = self._end["status"] != "in_progress"
        return {**self._head, **self._end, "output": list(self.output), "usage": self._usage() if done else None}

    def take(self, outputs: Sequence[Output]) -> list[Event]:
        """Notes a step's news; returns what a stream says of them."""
        told: list[Event] = []
        for output in outputs:
            self._tokens += len(output.token_ids)
            news: list[ChatEvent] = [SaidText(output.text)] if output.text else []
            if self._reader is not None:
                news = self._reader.feed(output.text)
            if any(isinstance(event, Reasoned) for event in news):
                self._reasoning_tokens = self._tokens  # reasoning comes first
            told += self._take(news)
            if output.finish_reason is not None:
                told += self._finish("incomplete" if output.finish_reason == "length" else "completed")
        return told

    def _finish(self, status: str) -> list[Event]:
        told = self._take(self._reader.finish(), status) if self._reader is not None else []
        told += self._close(status)
        if not self.output:  # the model's turn was empty, but it was one
            told += self._begin(_message()) + self._close(status)
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self._end |= {"status": status, "incomplete_details": details, "completed_at": int(time.time())}
        return told

    def _take(self, news: Sequence[ChatEvent], ends: str = "completed") -> list[Event]:
        """Args: ends: the status of a call that ends."""
        told: list[Event] = []
        for event in news:
            match event:
                case SaidText(text):
                    told += [*self._within(_message()), self._delta(text)]
                case Reasoned(text):
                    told += [*self._within(_reasoning()), self._delta(text)]
                case CallBegins(_, name):
                    told += [*self._close(), *self._begin(_call(name))]
                case ArgumentsPiece(_, text):
                    told.append(self._delta(text))
                case CallEnds():
                    told += self._close(ends)
        return told

    def _within(self, item: dict[str, Any]) -> list[Event]:
        """What makes the last item one of this type."""
        if self._open and self.output[-1]["type"] == item["type"]:
            return []
        return [*self._close(), *self._begin(item)]

    def _begin(self, item: dict[str, Any]) -> list[Event]:
        self.output.append(item)
        self._open, self._pieces = True, []
        begun = [{"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": dict(item)}]
        if item["type"] in PARTS:
            begun.append(self._of_item("content_part.added") | {"part": _part(item["type"], "")})
        return begun

    def _delta(self, text: str) -> Event:
        self._pieces.append(text)
        kind = self.output[-1]["type"]
        return self._of_item(f"{PARTS.get(kind, 'function_call_arguments')}.delta") | {"delta": text}

    def _close(self, status: str = "completed") -> list[Event]:
        if not self._open:
            return []
        item, text = self.output[-1], "".join(self._pieces)
        item["status"], self._open = status, False
        if item["type"] in PARTS:
            item["content"] = [_part(item["type"], text)]
            done = [
                self._of_item(f"{PARTS[item['type']]}.done") | {"text": text},
                self._of_item("content_part.done") | {"part": item["content"][0]},
            ]
        else:
            item["arguments"] = text
            done = [self._of_item("function_call_arguments.done") | {"name": item["name"], "arguments": text}]
        return [*done, {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": dict(item)}]

    def _of_item(self, event: str) -> Event:
        """What events of the open item have in common."""
        item, index = self.output[-1], len(self.output) - 1
        about: Event = {"type": f"response.{event}", "item_id": item["id"], "output_index": index}
        if item["type"] in PARTS:
            about["content_index"] = 0
        if event.startswith("output_text"):
            about["logprobs"] = []
        return about

    def _usage(self) -> dict[str, Any]:
        read = self._stream.prompt_tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": self._stream.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": read + self._tokens,
        }


def _message() -> dict[str, Any]:
    about = {"type": "message", "status": "in_progress", "role": "assistant"}
    return {"id": new_id("msg"), **about, "content": []}


def _reasoning() -> dict[str, Any]:
    return {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def _call(name: str) -> dict[str, Any]:
    about = {"type": "function_call", "status": "in_progress", "call_id": new_id("call"), "name": name}
    return {"id": new_id("fc"), **about, "arguments": ""}


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": PARTS[kind], "text": text}
    return part | ({"annotations": [], "logprobs": []} if kind == "message" else {})
