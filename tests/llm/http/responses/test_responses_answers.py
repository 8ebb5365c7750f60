"""Streams of responses: order and numbers of events, and the same response as without streaming."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from apps.llm.api import EngineStopped
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.reader import AnswerReader, ReasoningMarks
from apps.llm.http.responses.answers import ResponseWriter
from apps.llm.http.responses.requests import ResponseBody
from apps.llm.served.text_stream import TextStream
from apps.llm.text.generation import Generation
from apps.llm.text_api import Output, SamplingParams

CALL = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def writer(plain: bool = False) -> ResponseWriter:
    generation = Generation(range(20), SamplingParams())
    generation.cached_tokens = 16
    reader = None if plain else AnswerReader(Hermes(), ["f", "team__f"], ReasoningMarks("<think>", "</think>"))
    about = ResponseBody(input="x").repeated() | {"store": False}
    functions = {"f": (None, "f"), "team__f": ("team", "f")}
    return ResponseWriter("m", about, TextStream([generation], None, 0), reader, functions)


def outputs(pieces: Sequence[str], reason: Any = "stop") -> list[list[Output]]:
    """One step per piece, and a last one that ends the answer."""
    return [[Output(0, piece, (7,))] for piece in pieces] + [[Output(0, "", (1,), (), reason)]]


def streamed(writer: ResponseWriter, steps: Sequence[list[Output]]) -> list[dict[str, Any]]:
    return parsed(b"".join([*(writer.events(step) for step in steps), writer.last()]))


def parsed(text: bytes) -> list[dict[str, Any]]:
    """Checks each event against the official client's types."""
    events = []
    for event in text.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        EVENTS.validate_python(events[-1])
    return events


def collected(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response that the official client builds from a stream's events; checks their order."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    open_, items = None, 0
    for event in events:
        state.handle_event(EVENTS.validate_python(event))
        if event["type"] == "response.output_item.added":
            assert open_ is None and event["output_index"] == items
            open_, items = event["item"]["id"], items + 1
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == open_ and event["item"] == events[-1]["response"]["output"][items - 1]
            open_ = None
        elif "item_id" in event:
            assert (event["item_id"], event["output_index"]) == (open_, items - 1)
    assert open_ is None and len(events[-1]["response"]["output"]) == items
    return events[-1]["response"]


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """The response without ids and times, which differ between answers."""
    Response.model_validate(response)
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return response | {"id": "", "created_at": 0, "completed_at": 0, "output": output}


@settings(deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "why ", "Hello", "\n", CALL % '{"a": [1, "é"]}', CALL % "{}", "<tool"]),
        max_size=6,
    ),
    size=st.integers(1, 9),
    reason=st.sampled_from(["stop", "length"]),
)
def test_a_stream_is_the_whole_response_in_pieces(parts: list[str], size: int, reason: str) -> None:
    text = "".join(parts)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    whole = writer()
    for step in outputs(pieces, reason):
        whole.take(step)
    assert comparable(collected(streamed(writer(), outputs(pieces, reason)))) == comparable(whole.whole())


def test_reasoning_text_and_calls_are_items_in_order() -> None:
    text = f"<think>\nrain?\n</think>\n\nLet me see.\n{CALL % json.dumps({'city': 'Lyon'})}\n{CALL % '{}'}"
    response = collected(streamed(writer(), outputs(list(text))))
    thought, said, first, second = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "rain?"}] and thought["summary"] == []
    assert (said["content"][0]["text"], said["role"]) == ("Let me see.", "assistant")
    assert (first["name"], json.loads(first["arguments"]), second["arguments"]) == ("f", {"city": "Lyon"}, "{}")
    assert {item["status"] for item in response["output"]} == {"completed"} == {response["status"]}
    assert first["call_id"] != second["call_id"] and first["id"] != second["id"]
    assert response["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": len(text) + 1,
        "output_tokens_details": {"reasoning_tokens": text.index("?") + 1},
        "total_tokens": 20 + len(text) + 1,
    }


def test_a_call_of_a_namespaces_function_names_both() -> None:
    text = CALL.replace('"f"', '"team__f"') % '{"city": "Lyon"}'
    (call,) = collected(streamed(writer(), outputs(list(text))))["output"]
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == ("team", "f", {"city": "Lyon"})


@pytest.mark.parametrize("plain", [False, True])
def test_an_answer_that_is_cut_short_says_so(plain: bool) -> None:
    response = collected(streamed(writer(plain), outputs([" Hello\n"], "length")))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    (message,) = response["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", " Hello\n")


def test_a_call_that_is_cut_short_keeps_what_there_is() -> None:
    cut = (CALL % "{}") + CALL.partition("%s")[0] + '{"city": "Lyon", "days": [1, 2'
    whole, part = collected(streamed(writer(), outputs([cut], "length")))["output"]
    assert (whole["status"], whole["arguments"]) == ("completed", "{}")
    assert (part["status"], part["arguments"]) == ("incomplete", '{"city": "Lyon", "days": [1, 2')


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    (message,) = collected(streamed(writer(), outputs([])))["output"]
    assert (message["status"], message["content"][0]["text"]) == ("completed", "")


def test_a_stream_that_fails_ends_with_what_there_is() -> None:
    broken = writer()
    begun = broken.events([Output(0, "Hel", (7,))])
    response = collected(parsed(begun + broken.failed(EngineStopped("gone"))))
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "The model cannot answer: gone"},
    )
    (message,) = response["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hel")
