"""gpt-oss's answers in every dialect: channels become reasoning, text and calls, whole and in a stream."""

from typing import Any

import pytest

from apps.llm.chat.formats.harmony import Harmony
from apps.llm.chat.reader import AnswerReader
from apps.llm.http.anthropic.answers import MessageWriter
from apps.llm.http.openai.chat_answers import ChatWriter
from apps.llm.http.openai.completion_answers import choices
from apps.llm.http.responses.answers import ResponseWriter
from apps.llm.http.responses.requests import ResponseBody
from apps.llm.served.text_stream import TextStream
from apps.llm.text.generation import Generation
from apps.llm.text_api import SamplingParams
from tests.llm.http import test_anthropic_answers as messages
from tests.llm.http.responses import test_responses_answers as responses

ANSWER = (
    "<|channel|>analysis<|message|>Rain? I look.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Lyon"}'
)
"""Without `<|call|>`, which ends the answer and has no text."""
PIECES = pytest.mark.parametrize("size", [1, 7, 1000])


def cut(size: int) -> list[str]:
    return [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]


def source() -> TextStream:
    return TextStream([Generation(range(20), SamplingParams())], None, 0)


def reader() -> AnswerReader:
    return AnswerReader(Harmony(), ["f"])


@PIECES
def test_messages(size: int) -> None:
    def writer() -> MessageWriter:
        return MessageWriter("m", source(), reader(), 1000)

    steps = messages.outputs(cut(size))
    message, whole = messages.collected(messages.streamed(writer(), steps)), writer()
    for step in steps:
        whole.take(step)
    assert messages.comparable(message) == messages.comparable(whole.whole())
    thought, said, call = message["content"]
    assert (thought["thinking"], said["text"]) == ("Rain? I look.", "One moment.")
    assert (call["name"], call["input"], message["stop_reason"]) == ("f", {"city": "Lyon"}, "tool_use")


def test_blocks_begin_without_the_paragraph_between_them() -> None:
    channels = {"commentary": "A.", "analysis": "B.", "final": "C."}
    parts = [f"<|channel|>{channel}<|message|>{text}" for channel, text in channels.items()]
    writer = MessageWriter("m", source(), reader(), 1000)
    message = messages.collected(
        messages.streamed(writer, messages.outputs(list("<|end|><|start|>assistant".join(parts))))
    )
    assert [block.get("text") or block["thinking"] for block in message["content"]] == ["A.", "B.", "C."]


@PIECES
def test_responses(size: int) -> None:
    def writer() -> ResponseWriter:
        return ResponseWriter(
            "m", ResponseBody(input="x").repeated() | {"store": False}, source(), reader(), {"f": (None, "f")}
        )

    steps = responses.outputs(cut(size))
    response, whole = responses.collected(responses.streamed(writer(), steps)), writer()
    for step in steps:
        whole.take(step)
    assert responses.comparable(response) == responses.comparable(whole.whole())
    thought, said, call = response["output"]
    assert (thought["content"][0]["text"], said["content"][0]["text"]) == ("Rain? I look.", "One moment.")
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"city": "Lyon"}')


@PIECES
def test_chat(size: int) -> None:
    def writer() -> ChatWriter:
        return ChatWriter("m", source(), choices(1, 1, reader=reader), False)

    streaming, whole, steps = writer(), writer(), messages.outputs(cut(size))
    text = b"".join(streaming.events(step) for step in steps).decode()
    joined: dict[str, Any] = {"content": "", "reasoning_content": "", "arguments": ""}
    for line in text.strip().split("\n\n"):
        delta = messages.json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        for call in delta.pop("tool_calls", ()):
            joined["arguments"] += call["function"]["arguments"]
        for field in ("content", "reasoning_content"):
            joined[field] += delta.get(field, "")
    for step in steps:
        whole.take(step)
    choice = whole.whole()["choices"][0]
    said = choice["message"]
    assert choice["finish_reason"] == "tool_calls" and said["tool_calls"][0]["function"]["name"] == "f"
    assert joined == {
        "content": said["content"],
        "reasoning_content": said["reasoning_content"],
        "arguments": said["tool_calls"][0]["function"]["arguments"],
    }
    assert joined == {
        "content": "One moment.",
        "reasoning_content": "Rain? I look.",
        "arguments": '{"city": "Lyon"}',
    }
