"""OpenAI's responses over HTTP: the official client drives a tiny random model."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pydantic
import pytest
from jsonschema import Draft202012Validator

from apps.llm.api import EngineStopped
from apps.llm.served.text_stream import TextStream
from apps.llm.text_api import Output
from tests.llm.serve.dialects.responses.asking import ONE_CALL, QUESTION, TOOL, WEATHER, ask
from tests.llm.serve.serving import MODEL


def test_a_whole_response(client: openai.OpenAI) -> None:
    response = ask(client, instructions="Be brief.", metadata={"trace": "7"}, top_p=0.9)
    assert (response.object, response.model, response.status) == ("response", MODEL, "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens" and response.error is None
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert response.output_text and response.id.startswith("resp_")
    assert (response.instructions, response.metadata, response.top_p) == ("Be brief.", {"trace": "7"}, 0.9)
    usage = response.usage
    assert usage.output_tokens == 9 and usage.total_tokens == usage.input_tokens + 9
    assert ask(client, instructions="Be brief.").usage.input_tokens_details.cached_tokens >= 16


def test_text_and_items_are_the_same_input(stateless: openai.OpenAI) -> None:
    part = {"type": "input_text", "text": QUESTION}
    answers = {
        ask(stateless, input).output_text
        for input in (
            QUESTION,
            [{"role": "user", "content": QUESTION}],
            [{"type": "message", "role": "user", "content": [part]}],
        )
    }
    chat = stateless.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=9, temperature=0
    )
    assert answers == {chat.choices[0].message.content}


@pytest.mark.usefixtures("token_by_token")
def test_the_stream_is_the_same_response(stateless: openai.OpenAI) -> None:
    whole = ask(stateless, max_output_tokens=30)
    events = list(ask(stateless, max_output_tokens=30, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 5 and kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    final = events[-1].response
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert final.output_text == whole.output_text and final.usage.output_tokens == 30
    assert final.id == events[0].response.id and events[0].response.status == "in_progress"


@pytest.mark.usefixtures("token_by_token")
def test_a_call_over_two_turns(stateless: openai.OpenAI) -> None:
    offer = {k: v for k, v in ONE_CALL.items() if k != "tool_choice"}
    with stateless.responses.stream(model=MODEL, input=QUESTION, **ONE_CALL) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 5 and called.status == "completed"
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    (call,) = called.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    Draft202012Validator(WEATHER).validate(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "no"}
    longer = [{"role": "user", "content": QUESTION}, *called.output, result]
    said = ask(stateless, longer, **offer | {"tool_choice": "none", "max_output_tokens": 5})
    assert [item.type for item in said.output] == ["message"]
    named = ask(
        stateless,
        **ONE_CALL | {"tools": [TOOL, TOOL | {"name": "now"}], "tool_choice": {"type": "function", "name": "now"}},
    )
    assert [item.name for item in named.output] == ["now"]


def test_an_answer_in_json(stateless: openai.OpenAI) -> None:
    class Weather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=6)
        days: int = pydantic.Field(ge=1, le=9)

    quick: Any = {"reasoning": {"effort": "none"}, "max_output_tokens": 200, "temperature": 0}
    parsed = stateless.responses.parse(model=MODEL, input=QUESTION, text_format=Weather, **quick)
    assert isinstance(parsed.output_parsed, Weather)
    free = ask(stateless, text={"format": {"type": "json_object"}}, **quick | {"temperature": 1})
    assert free.status == "incomplete" or isinstance(json.loads(free.output_text), dict)


def test_reasoning_is_an_item_of_its_own(client: openai.OpenAI, change_template: Callable[[str], None]) -> None:
    thinks, quick = (ask(client, reasoning={"effort": effort}).usage.input_tokens for effort in ("high", "none"))
    assert quick > thinks  # the prompt has empty reasoning
    change_template("thinking")  # its prompt has the opening mark of the reasoning
    events = list(ask(client, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"reasoning_text.delta"}
    assert kinds[-4:] == ["reasoning_text.done", "content_part.done", "output_item.done", "incomplete"]
    response = events[-1].response
    (thought,) = response.output
    assert thought.type == "reasoning" and thought.content[0].text and response.output_text == ""
    assert response.usage.output_tokens_details.reasoning_tokens == 9
    again = [{"role": "user", "content": QUESTION}, thought, {"role": "user", "content": "So?"}]
    assert ask(client, again).usage.output_tokens == 9
    assert ask(client, "So?", previous_response_id=response.id).usage.output_tokens == 9


def test_a_stream_that_fails_says_so_and_is_not_kept(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    read = TextStream.outputs

    async def failing(stream: TextStream) -> AsyncIterator[list[Output]]:
        async for outputs in read(stream):
            yield outputs
            raise EngineStopped("the slice is gone")

    monkeypatch.setattr(TextStream, "outputs", failing)
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.message == "The model cannot answer: the slice is gone"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.response.id)
    with pytest.raises(openai.InternalServerError, match="the slice is gone"):
        ask(client)
