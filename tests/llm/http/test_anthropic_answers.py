"""Anthropic's streams: order and indices of blocks, and the same message as without streaming."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.reader import AnswerReader, ReasoningMarks
from apps.llm.http.anthropic import answers as anthropic_answers
from apps.llm.http.anthropic.answers import MessageWriter
from apps.llm.served.text_stream import TextStream
from apps.llm.text.generation import Generation
from apps.llm.text_api import Output, SamplingParams

CALL = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'


def writer(context: int = 1000, plain: bool = False) -> MessageWriter:
    generation = Generation(range(20), SamplingParams())
    generation.cached_tokens = 16
    reader = None if plain else AnswerReader(Hermes(), ["f"], ReasoningMarks("<think>", "</think>"))
    return MessageWriter("m", TextStream([generation], None, 0), reader, context)


def outputs(pieces: Sequence[str], reason: Any = "stop", stopped_by: Any = None) -> list[list[Output]]:
    """One step per piece, and a last one that ends the answer."""
    return [[Output(0, piece, (7,))] for piece in pieces] + [[Output(0, "", (1,), (), reason, stopped_by)]]


def streamed(writer: MessageWriter, steps: Sequence[list[Output]]) -> list[dict[str, Any]]:
    text = b"".join([*(writer.events(step) for step in steps), writer.last()]).decode()
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def collected(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that the official client builds from a stream; checks the order of events."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    open_, blocks = None, 0
    for event in events:
        if event["type"] == "content_block_start":
            assert open_ is None and event["index"] == blocks
            open_, blocks = event["index"], blocks + 1
        elif event["type"].startswith("content_block"):
            assert event["index"] == open_
            open_ = None if event["type"] == "content_block_stop" else open_
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    kinds = [event["type"] for event in events]
    assert open_ is None and kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_delta") == 1
    return message.to_dict()


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """The message without ids, which differ between answers."""
    blocks = [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in message["content"]]
    names = ("stop_reason", "stop_sequence", "role", "type", "model", "usage")
    return {"content": blocks, **{name: message[name] for name in names}}


@settings(deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "why ", "Hello", "\n", CALL % '{"a": [1, "é"]}', CALL % "{}", "<tool"]),
        max_size=6,
    ),
    size=st.integers(1, 9),
)
def test_a_stream_is_the_whole_answer_in_pieces(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    whole = writer()
    for step in outputs(pieces):
        whole.take(step)
    assert comparable(collected(streamed(writer(), outputs(pieces)))) == comparable(whole.whole())


def test_thinking_text_and_calls_are_blocks_in_order() -> None:
    text = f"<think>\nrain?\n</think>\n\nLet me see.\n{CALL % json.dumps({'city': 'Lyon'})}\n{CALL % '{}'}"
    message = collected(streamed(writer(), outputs(list(text))))
    thought, said, first, second = message["content"]
    assert thought == {"type": "thinking", "thinking": "rain?", "signature": message["id"]}
    assert said == {"type": "text", "text": "Let me see."}
    assert (first["name"], first["input"], second["input"]) == ("f", {"city": "Lyon"}, {})
    assert first["id"].startswith("toolu_") and first["id"] != second["id"]
    assert message["stop_reason"] == "tool_use" and message["id"].startswith("msg_")
    assert message["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": len(text) + 1,
    }


@pytest.mark.parametrize(
    ("reason", "stopped_by", "context", "said"),
    [
        ("stop", None, 1000, ("end_turn", None)),
        ("stop", "END", 1000, ("stop_sequence", "END")),
        ("length", None, 1000, ("max_tokens", None)),
        ("length", None, 22, ("model_context_window_exceeded", None)),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_why_an_answer_ends(reason: str, stopped_by: Any, context: int, said: tuple[Any, Any], plain: bool) -> None:
    message = collected(streamed(writer(context, plain), outputs([" Hello\n"], reason, stopped_by)))
    assert (message["stop_reason"], message["stop_sequence"]) == said
    assert message["content"] == [{"type": "text", "text": " Hello\n"}]


def test_a_call_that_is_cut_short_keeps_what_there_is() -> None:
    cut = CALL.partition("%s")[0] % () + '{"city": "Lyon", "days": [1, 2'
    events = streamed(writer(), outputs([cut], "length"))
    (call,) = collected(events)["content"]
    assert call["input"] == {"city": "Lyon", "days": [1, 2]} and collected(events)["stop_reason"] == "max_tokens"
    broken = writer()
    for step in outputs([CALL % "{'city': Lyon}"]):
        broken.take(step)
    assert broken.whole()["content"][0]["input"] == {}


def test_an_answer_of_nothing() -> None:
    assert collected(streamed(writer(), outputs([])))["content"] == []


def test_silence_is_broken_by_a_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    held = CALL.partition(" ")[0]  # a possible call: not shown yet
    quiet = writer()
    assert quiet.events([Output(0, "", (7,))]) and not quiet.events([Output(0, held, (7,))])
    monkeypatch.setattr(anthropic_answers, "PING_S", -1)
    assert quiet.events([Output(0, ' "name"', (7,))]) == b'event: ping\ndata: {"type": "ping"}\n\n'
