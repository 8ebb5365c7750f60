"""A chat: what is sent, and what is shown of the answer's events as they arrive."""

import base64
import html
import json
import math
import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]
"""A message in OpenAI's format, but for a `picture` beside its text: the path of a file here."""

WEATHER = """[{
  "type": "function",
  "function": {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "required": ["city"], "additionalProperties": false,
                   "properties": {"city": {"type": "string", "maxLength": 40}}}
  }
}]"""
"""An example for the field of tools."""


class StreamedAnswer:
    """An answer as far as its events have arrived.

    Args:
        asked_at: when the request was sent, in seconds of a monotonic clock.
    """

    def __init__(self, asked_at: float):
        self.content, self.reasoning = "", ""
        self.calls: list[dict[str, Any]] = []
        self.tokens: list[dict[str, Any]] = []
        """With log probabilities, if they were requested."""
        self._asked_at = asked_at
        self._first_at: float | None = None
        self._last_at = asked_at
        self._count = 0
        self._finish_reason: str | None = None

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Adds a chunk of a chat completion that arrived at `now`."""
        if usage := event.get("usage"):
            self._count = usage["completion_tokens"]
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            text, thought = delta.get("content") or "", delta.get("reasoning_content") or ""
            calls = delta.get("tool_calls") or []
            if text or thought or calls or logprobs:
                self._first_at = now if self._first_at is None else self._first_at
                self._last_at = now
            self.content += text
            self.reasoning += thought
            self.tokens += logprobs
            for piece in calls:
                self._take_call(piece)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        if piece["index"] >= len(self.calls):
            self.calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = self.calls[piece["index"]]
        call["id"] += piece.get("id") or ""
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def message(self) -> Message:
        """The answer for the next request's messages."""
        message: Message = {"role": "assistant", "content": self.content or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message | ({"tool_calls": self.calls} if self.calls else {})

    def speed(self) -> str:
        """TTFT, tokens per second after the first token, their number, and why the answer ended."""
        if self._first_at is None:
            return ""
        parts = [f"TTFT {self._first_at - self._asked_at:.2f} s"]
        if self._count > 1 and self._last_at > self._first_at:
            parts.append(f"{(self._count - 1) / (self._last_at - self._first_at):.1f} tokens/s")
        if self._count:
            parts.append(f"{self._count} token{'s' if self._count > 1 else ''}")
        return " · ".join([*parts, *([f"ended by {self._finish_reason}"] if self._finish_reason else [])])


def unanswered(messages: Sequence[Message]) -> list[Message]:
    """The last answer's tool calls that have no result yet."""
    results = set()
    for message in reversed(messages):
        if message["role"] != "tool":
            calls = message.get("tool_calls", []) if message["role"] == "assistant" else []
            return [call for call in calls if call["id"] not in results]
        results.add(message["tool_call_id"])
    return []


def with_text(messages: Sequence[Message], text: str, picture: str | None = None) -> list[Message]:
    """The messages with what was typed: a call's result if one is awaited, else a question, perhaps about a picture."""
    if calls := unanswered(messages):
        return [*messages, {"role": "tool", "tool_call_id": calls[0]["id"], "content": text}]
    return [*messages, {"role": "user", "content": text} | ({"picture": picture} if picture else {})]


def _sent(message: Message) -> Message:
    """A message as the service takes it. Raises ValueError if its picture is gone."""
    if "picture" not in message:
        return message
    file = Path(message["picture"])
    try:
        content = base64.b64encode(file.read_bytes()).decode()
    except OSError:
        raise ValueError("A picture of this chat is no longer there: begin a new chat") from None
    url = f"data:{mimetypes.guess_type(file.name)[0] or 'image/png'};base64,{content}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": message["content"]}]
    return {"role": message["role"], "content": parts}


def hint(messages: Sequence[Message]) -> str:
    """What the field for text is for, now."""
    calls = unanswered(messages)
    return f"Result of {calls[0]['function']['name']}, as text or JSON" if calls else "Message"


def request(
    model: str | None,
    system: str,
    messages: Sequence[Message],
    sampling: Mapping[str, float | None],
    tools: str = "",
    tool_choice: str = "auto",
    thinking: str = "",
    probabilities: int = 0,
) -> dict[str, Any]:
    """The body of /v1/chat/completions.

    Args:
        sampling: fields of the body; None for the service's default.
        tools: a JSON list of tools, or empty.
        tool_choice: auto, none, required or a tool's name. A tool's result is followed by an answer, not by another
            enforced call.
        thinking: a `reasoning_effort`; empty for the model's default.
        probabilities: how many of the likeliest tokens to report at each position; 0: none.

    Raises:
        ValueError: `tools` cannot be used, or a picture is gone.
    """
    first = [{"role": "system", "content": system}] if system.strip() else []
    body: dict[str, Any] = {"messages": [*first, *map(_sent, messages)], "stream": True}
    body["stream_options"] = {"include_usage": True}
    body |= {"model": model} if model else {}
    body |= {name: value for name, value in sampling.items() if value is not None}
    body |= {"reasoning_effort": thinking} if thinking else {}
    body |= {"logprobs": True, "top_logprobs": probabilities} if probabilities else {}
    if listed := _tools(tools):
        if messages[-1]["role"] == "tool" and tool_choice != "none":
            tool_choice = "auto"
        named = {"type": "function", "function": {"name": tool_choice}}
        body |= {"tools": listed, "tool_choice": tool_choice if tool_choice in ("auto", "none", "required") else named}
        body["parallel_tool_calls"] = False  # a person writes the results
    return body


def _tools(text: str) -> list[Any]:
    try:
        listed = json.loads(text or "[]")
    except ValueError as error:
        raise ValueError(f"Tools are not valid JSON: {error}") from None
    if not isinstance(listed, list):
        raise ValueError('Tools must be a JSON list such as [{"type": "function", "function": {"name": ...}}]')
    return listed


def shown(messages: Sequence[Message], answer: StreamedAnswer | None = None) -> list[dict[str, Any]]:
    """The chat as Gradio's Chatbot takes it: thinking, calls and their results are boxes with a title that fold."""
    boxes: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    streaming = answer.message() if answer else None
    for message in [*messages, *([streaming] if streaming else [])]:
        if message["role"] == "tool":
            title = f"Result of {names.get(message['tool_call_id'], 'the call')}"
            boxes.append(_box(title, _code(message["content"]), "done"))
            continue
        if thought := message.get("reasoning_content"):
            over = message is not streaming or message["content"] or message.get("tool_calls")
            boxes.append(_box("Thinking", thought, "done" if over else "pending"))
        if picture := message.get("picture"):
            boxes.append({"role": message["role"], "content": {"path": picture}})
        if message["content"]:
            boxes.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
            # Without a status the box is open: the arguments are what one looks for.
            boxes.append(_box(f"Call of {call['function']['name']}", _code(call["function"]["arguments"])))
    return boxes


def _box(title: str, text: str, status: str | None = None) -> dict[str, Any]:
    metadata = {"title": title} | ({"status": status} if status else {})
    return {"role": "assistant", "content": text, "metadata": metadata}


def _code(text: str) -> str:
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}json\n{text}\n{fence}"


def tokens_html(tokens: Sequence[Mapping[str, Any]]) -> str:
    """The tokens, colored from red (unlikely) to green; the likeliest ones at each position appear on hover."""
    spans = []
    for token in tokens:
        chance = math.exp(token["logprob"])
        listed = sorted(token.get("top_logprobs") or [token], key=lambda other: -other["logprob"])
        rows = "".join(
            f"<tr{' class=chosen' if other['token'] == token['token'] else ''}><td>{_visible(other['token'])}</td>"
            f"<td>{100 * math.exp(other['logprob']):.1f} %</td></tr>"
            for other in listed
        )
        spans.append(
            f'<span class="token" tabindex="0" style="background: hsl({120 * chance:.0f} 70% 50% / 30%)">'
            f'{_visible(token["token"])}<table class="likeliest">{rows}</table></span>'
        )
    return f'<div class="tokens">{"".join(spans)}</div>' if spans else ""


def _visible(token: str) -> str:
    return html.escape(token).replace("\n", "⏎").replace(" ", "\u00a0")
