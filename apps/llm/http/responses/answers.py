"""Answers of the Responses API, as one JSON object or as server-sent events."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apps.llm.chat.events import CallStart, ReasoningPiece, TextPiece
from apps.llm.http.answering import Block, BlockWriter, Event
from apps.llm.http.responses.items import new_id
from apps.llm.http.responses.requests import NAMES
from apps.llm.served.text_stream import TextStream
from apps.llm.text_api import Output, PieceReader
from apps.serving.ingress.dialects.openai_errors import of_stream

PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""Item type -> type of its one content part."""


class ResponseWriter(BlockWriter):
    """One response; its output items are the blocks.

    Args:
        about: the fields that it repeats from its request.
        reader: splits the answer into reasoning, text and calls; None if it is only text.
        functions: name for the model -> namespace, if any, and name of each function that may be called.
        keep: called when the response is complete, before the client learns of it and may continue it.
    """

    def __init__(
        self,
        model: str,
        about: Mapping[str, Any],
        stream: TextStream,
        reader: PieceReader | None,
        functions: Mapping[str, tuple[str | None, str]],
        keep: Callable[["ResponseWriter"], None] = lambda _: None,
    ):
        super().__init__(stream, reader)
        self.id = new_id("resp")
        head = {"id": self.id, "object": "response", "created_at": int(time.time()), "model": model}
        self._head: dict[str, Any] = {**head, **about}
        self._functions, self._keep = functions, keep
        self._reasoning_tokens = 0
        self._end: dict[str, Any] = {"status": "in_progress", "error": None, "incomplete_details": None}
        self._sent = 0  # number of events

    # -- streamed -----------------------------------------------------------------------------------------------

    def events(self, outputs: list[Output]) -> bytes:
        begin = [] if self._sent else [self._state("created"), self._state("in_progress")]
        return self._written(begin + self.take(outputs))

    def last(self) -> bytes:
        return self._written([self._state(self._end["status"])])

    def failed(self, error: Exception) -> bytes:
        events = self.close("incomplete")
        message = of_stream(error, NAMES).message
        self._end |= {"status": "failed", "error": {"code": "server_error", "message": message}}
        return self._written([*events, self._state("failed")])

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
        done = self._end["status"] != "in_progress"
        return {**self._head, **self._end, "output": list(self.blocks), "usage": self._usage() if done else None}

    def take(self, outputs: list[Output]) -> list[Event]:
        """Collects a step's outputs; returns the stream's events."""
        events: list[Event] = []
        for output in outputs:
            self.tokens += len(output.token_ids)
            news = self.read(output.text)
            if any(isinstance(event, ReasoningPiece) for event in news):
                self._reasoning_tokens = self.tokens  # reasoning comes first
            events += self.add(news)
            if output.finish_reason is not None:
                events += self._finish("incomplete" if output.finish_reason == "length" else "completed")
        return events

    def _finish(self, status: str) -> list[Event]:
        events = [*self.add(self.rest(), status), *self.close(status)]
        if not self.blocks:  # an empty answer is still a message
            events += [*self.begin(TextPiece("")), *self.close(status)]
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self._end |= {"status": status, "incomplete_details": details, "completed_at": int(time.time())}
        self._keep(self)
        return events

    # -- items --------------------------------------------------------------------------------------------------

    def block(self, event: TextPiece | ReasoningPiece | CallStart) -> Block:
        about = {"status": "in_progress"}
        match event:
            case TextPiece():
                return {"id": new_id("msg"), "type": "message", **about, "role": "assistant", "content": []}
            case ReasoningPiece():
                return {"id": new_id("rs"), "type": "reasoning", **about, "summary": [], "content": []}
            case CallStart(_, name):
                namespace, name = self._functions[name]
                called = {"name": name} if namespace is None else {"namespace": namespace, "name": name}
                head = {"id": new_id("fc"), "type": "function_call", **about, "call_id": new_id("call")}
                return {**head, **called, "arguments": ""}

    def begun(self) -> list[Event]:
        item = self.blocks[-1]
        begun = [{"type": "response.output_item.added", "output_index": len(self.blocks) - 1, "item": dict(item)}]
        if item["type"] in PARTS:
            begun.append(self._of_item("content_part.added") | {"part": _part(item["type"], "")})
        return begun

    def delta(self, text: str) -> Event:
        kind = self.blocks[-1]["type"]
        return self._of_item(f"{PARTS.get(kind, 'function_call_arguments')}.delta") | {"delta": text}

    def ended(self, text: str, status: str) -> list[Event]:
        item = self.blocks[-1]
        item["status"] = status
        if item["type"] in PARTS:
            item["content"] = [_part(item["type"], text)]
            done = [
                self._of_item(f"{PARTS[item['type']]}.done") | {"text": text},
                self._of_item("content_part.done") | {"part": item["content"][0]},
            ]
        else:
            item["arguments"] = text
            done = [self._of_item("function_call_arguments.done") | {"name": item["name"], "arguments": text}]
        return [*done, {"type": "response.output_item.done", "output_index": len(self.blocks) - 1, "item": dict(item)}]

    def _of_item(self, event: str) -> Event:
        """The fields that all events of the open item share."""
        item, index = self.blocks[-1], len(self.blocks) - 1
        about: Event = {"type": f"response.{event}", "item_id": item["id"], "output_index": index}
        if item["type"] in PARTS:
            about["content_index"] = 0
        if event.startswith("output_text"):
            about["logprobs"] = []
        return about

    def _usage(self) -> dict[str, Any]:
        read = self.stream.prompt_tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": self.stream.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": read + self.tokens,
        }


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": PARTS[kind], "text": text}
    return part | ({"annotations": [], "logprobs": []} if kind == "message" else {})
