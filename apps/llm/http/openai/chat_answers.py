"""Answers of /v1/chat/completions: messages with reasoning and tool calls, whole or as deltas."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

from apps.llm.chat.events import ArgumentsPiece, CallStart, ChatEvent, ReasoningPiece, TextPiece
from apps.llm.http.openai.completion_answers import Choice, CompletionWriter, finish_reason
from apps.llm.text_api import Output, TokenLogprob


class ChatWriter(CompletionWriter):
    """/v1/chat/completions."""

    KIND, EVENT_KIND, ID = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    OPEN, CLOSE = '"delta":{"content":', "}"

    def begin(self, choice: Choice) -> str:
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        if self._prompts is None:
            return f'{self._event}{{"index":{choice.index},{delta}{self._end}'
        choice.told_prompt = True
        prompt = f'],"prompt_token_ids":{json.dumps(self.prompt_ids(choice))}'
        return f'{self._event}{{"index":{choice.index},{delta}{self._end.replace("]", prompt, 1)}'

    def news(self, choice: Choice, outputs: Sequence[Output]) -> str:
        if choice.reader is None:
            return super().news(choice, outputs)
        ended, stop_reason = outputs[-1].finish_reason, outputs[-1].stop_reason
        news = choice.reader.feed("".join(output.text for output in outputs))
        if ended is not None:
            news += choice.reader.finish()
        logprobs = [logprob for output in outputs for logprob in output.logprobs]
        deltas = [delta for event in news if (delta := _delta(event)) is not None] or [{}] * bool(logprobs)
        if not deltas and ended is None:
            return ""
        begin = ""
        if not choice.started:
            choice.started, begin = True, self.begin(choice)
        written = [
            self._choice_event(choice, f'"delta":{json.dumps(delta)}', () if i else logprobs, None, None)
            for i, delta in enumerate(deltas)
        ]
        if ended is not None:
            written.append(self._choice_event(choice, '"delta":{}', (), finish_reason(choice, ended), stop_reason))
        return begin + "".join(written)

    def message(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.texts), "refusal": None}
        if choice.reader is not None:
            message |= _message_fields(choice.reader.feed(message["content"]) + choice.reader.finish())
        return {"message": message}

    def ids(self) -> dict[str, Any]:
        return {} if self._prompts is None else {"prompt_token_ids": self.prompt_ids(self._choices[0])}

    def ids_of(self, choice: Choice) -> dict[str, Any]:
        return {"token_ids": choice.token_ids}

    def logprobs(self, choice: Choice, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {
            "content": [
                _chat_token(entry.text, entry.logprob, entry.data[0])
                | {
                    "top_logprobs": [
                        _chat_token(text, logprob, data) for (_, text, logprob), data in zip(entry.top, entry.data[1:])
                    ]
                }
                for entry in logprobs
            ],
            "refusal": None,
        }


def _delta(event: ChatEvent) -> dict[str, Any] | None:
    """A chunk's delta for an event; None if it needs none."""
    match event:
        case TextPiece(text):
            return {"content": text}
        case ReasoningPiece(text):
            return _reasoning(text)
        case CallStart(index, name):
            call = {"index": index, "id": _call_id(), "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case ArgumentsPiece(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None


def _message_fields(events: Sequence[ChatEvent]) -> dict[str, Any]:
    """A message's fields for all events of an answer."""
    content = "".join(event.text for event in events if isinstance(event, TextPiece))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningPiece))
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append({"id": _call_id(), "type": "function", "function": {"name": event.name, "arguments": ""}})
        elif isinstance(event, ArgumentsPiece):
            calls[event.index]["function"]["arguments"] += event.text
    fields: dict[str, Any] = {"content": None if calls and not content else content}
    if reasoning:
        fields |= _reasoning(reasoning)
    return fields | ({"tool_calls": calls} if calls else {})


def _reasoning(text: str) -> dict[str, Any]:
    """Under vLLM's name, and under its older one, which DeepSeek and most clients have."""
    return {"reasoning": text, "reasoning_content": text}


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def _chat_token(text: str, logprob: float, data: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(data)}
