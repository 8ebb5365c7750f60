"""OpenAI's responses over HTTP: the official client drives a tiny random model; bad bodies name their field."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals
from tests.llm.serve.nearly_right import anything, fields, schemas, texts
from tests.llm.serve.serving import MODEL, LocalServer, served

QUESTION = "Rain in Lyon?"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "get_weather", "description": "Forecast.", "parameters": WEATHER}
ONE_CALL: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": 200,
    "reasoning": {"effort": "none"},  # a random model may think for ever
}
KEPT = 3


@pytest.fixture(scope="module")
def keeping(chat_server: LocalServer) -> Iterator[str]:
    """URL of an application over the same model that keeps responses, for two callers."""
    keys = principals(["alice=a-key", "alice=a-second-key", "bob=b-key"])
    with served(http_app({MODEL: chat_server.model}, keys, stored_responses=KEPT)) as url:
        yield url


def client_of(url: str, key: str = "a-key") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(keeping: str) -> Iterator[openai.OpenAI]:
    with client_of(keeping) as client:
        yield client


@pytest.fixture
def stateless(chat_server: LocalServer) -> Iterator[openai.OpenAI]:
    with client_of(chat_server.url) as client:
        yield client


def ask(client: openai.OpenAI, input: Any = QUESTION, **body: Any) -> Any:
    body = {"max_output_tokens": 9, "temperature": 0} | body
    return client.responses.create(model=MODEL, input=input, **body)


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


def test_a_kept_response_is_continued(client: openai.OpenAI) -> None:
    """By its id alone, with the same answer as the whole conversation has."""
    called = ask(client, **ONE_CALL)
    (call,) = called.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "no"}]}
    offer = {"tools": [TOOL], "tool_choice": "none", "reasoning": {"effort": "none"}}
    short = ask(client, [result], previous_response_id=called.id, **offer)
    whole = ask(client, [{"role": "user", "content": QUESTION}, call, result], store=False, **offer)
    assert short.output_text == whole.output_text and short.usage.input_tokens == whole.usage.input_tokens
    assert short.previous_response_id == called.id
    kinds = [item.type for item in client.responses.input_items.list(short.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]
    client.responses.delete(called.id)
    third = list(ask(client, "And now?", previous_response_id=short.id, stream=True, **offer))[-1].response
    assert third.usage.input_tokens > short.usage.input_tokens
    assert client.responses.retrieve(third.id).output_text == third.output_text


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    talk = [{"role": role, "content": str(i)} for i, role in enumerate(("user", "assistant", "user"))]
    response = ask(client, talk)
    items = list(client.responses.input_items.list(response.id, limit=2))
    assert [item.content[0].text for item in items] == ["2", "1", "0"] and len({item.id for item in items}) == 3
    first = client.responses.input_items.list(response.id, limit=2)
    assert first.has_more and (first.first_id, first.last_id) == (items[0].id, items[1].id)
    for query, param in (({"limit": 0}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.input_items.list(response.id, extra_query=query)
        assert refused.value.param == param


def test_a_kept_response_is_its_callers_alone(client: openai.OpenAI, keeping: str) -> None:
    response = ask(client)
    assert client.responses.retrieve(response.id) == response
    assert client_of(keeping, "a-second-key").responses.retrieve(response.id) == response
    bob = client_of(keeping, "b-key")
    for look in (
        bob.responses.retrieve,
        bob.responses.delete,
        bob.responses.input_items.list,
        lambda id: ask(bob, previous_response_id=id),
    ):
        refusals = []
        for id in (response.id, "resp_" + "0" * 32):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as refused:
                look(id)
            refusals.append(refused.value.message.replace(id, "ID"))
        assert refusals[0] == refusals[1] and "no response" in refusals[0]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="deleted"):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_what_is_not_kept(client: openai.OpenAI) -> None:
    unkept = ask(client, store=False)
    oldest, *_ = [ask(client) for _ in range(KEPT + 1)]
    for id in (unkept.id, oldest.id):
        with pytest.raises(openai.NotFoundError, match=f"its own last {KEPT} in memory"):
            client.responses.retrieve(id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, previous_response_id=oldest.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_server_that_keeps_none(stateless: openai.OpenAI) -> None:
    response = ask(stateless)
    assert response.store is False
    with pytest.raises(openai.NotFoundError, match="stored_responses is 0"):
        stateless.responses.retrieve(response.id)
    for field, value in (("store", True), ("previous_response_id", response.id)):
        with pytest.raises(openai.BadRequestError, match="stored_responses is 0") as refused:
            ask(stateless, **{field: value})
        assert refused.value.param == field


def test_an_answer_in_json(stateless: openai.OpenAI) -> None:
    class Weather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=6)
        days: int = pydantic.Field(ge=1, le=9)

    quick: Any = {"reasoning": {"effort": "none"}, "max_output_tokens": 200}
    parsed = stateless.responses.parse(model=MODEL, input=QUESTION, text_format=Weather, **quick)
    assert isinstance(parsed.output_parsed, Weather)
    free = ask(stateless, text={"format": {"type": "json_object"}}, temperature=1, **quick)
    assert free.status == "incomplete" or isinstance(json.loads(free.output_text), dict)


def test_reasoning_is_an_item_of_its_own(client: openai.OpenAI, change_template: Callable[[str], None]) -> None:
    thinks, quick = (ask(client, reasoning={"effort": effort}).usage.input_tokens for effort in ("high", "none"))
    assert quick > thinks  # an empty thought in the prompt
    change_template("thinking")  # its prompt opens the reasoning
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


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "no"}
NOT_JSON = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}
BAD_SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "no"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": user({"type": "input_image", "image_url": "x"})}, "input[0].content[0].type"),
        ({"input": user({"type": "input_text"})}, "input[0].content[0].text"),
        ({"input": [RESULT]}, "input[0].call_id"),
        ({"input": [CALL, RESULT | {"call_id": "b"}]}, "input[1].call_id"),
        ({"input": [CALL, *user(), RESULT]}, "input[2].call_id"),
        ({"input": [NOT_JSON]}, "input[0].arguments"),
        ({"input": "x " * 3000}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"strict": True, "parameters": {"type": "no"}}]}, "tools[0].parameters"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            },
            "tool_choice",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": BAD_SCHEMA}}, "text.format.schema"),
        ({"tools": [TOOL], "text": {"format": BAD_SCHEMA}}, "text.format.schema"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"previous_response_id": "resp_gone"}, "previous_response_id"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_body_names_the_field(keeping: str, body: dict[str, Any], param: str, stream: bool) -> None:
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 2, "stream": stream} | body
    reply = httpx.post(f"{keeping}/v1/responses", json=body, headers={"x-api-key": "a-key"})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error") and error["message"], error


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_what_would_be_no_json_is_refused(chat_server: LocalServer, number: str) -> None:
    body = json.dumps({"input": "x", "tools": [TOOL | {"parameters": {"a": "?"}}]}).replace('"?"', number)
    reply = httpx.post(f"{chat_server.url}/v1/responses", content=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[0].parameters")


part = fields({"type": st.sampled_from(["input_text", "output_text", "input_image"]), "text": texts}, ("type",))
said = texts | st.lists(part, max_size=2)
call_ids = st.sampled_from(["a", "b"])
item = st.one_of(
    fields({"type": st.just("message"), "role": st.sampled_from(["user", "assistant", "system"]), "content": said}),
    fields(
        {"type": st.just("function_call"), "call_id": call_ids, "name": texts, "arguments": st.just("{}") | texts},
        ("type", "call_id"),
    ),
    fields({"type": st.just("function_call_output"), "call_id": call_ids, "output": said}, ("type", "call_id")),
    fields({"type": st.just("reasoning"), "summary": st.lists(part, max_size=1), "content": st.lists(part)}, ("type",)),
)
named = fields({"type": st.just("function"), "name": texts})
bodies = fields(
    {
        "input": texts | st.lists(item, max_size=4),
        "instructions": texts,
        "tools": st.lists(
            fields({"type": st.just("function"), "name": texts, "parameters": schemas, "strict": st.booleans()}),
            max_size=3,
        ),
        "tool_choice": st.sampled_from(["none", "auto", "required"])
        | named
        | fields({"type": st.just("allowed_tools"), "mode": st.just("auto"), "tools": st.lists(named, max_size=2)}),
        "parallel_tool_calls": st.booleans(),
        "reasoning": fields({"effort": st.sampled_from(["none", "low", "max"]), "summary": st.just("auto")}),
        "text": fields(
            {
                "format": fields(
                    {"type": st.sampled_from(["text", "json_object", "json_schema"]), "name": texts, "schema": schemas}
                )
            }
        ),
        "temperature": st.floats(0, 2) | st.just(float("nan")),
        "top_p": st.floats(0, 1),
        "max_output_tokens": st.integers(1, 4),
        "metadata": st.dictionaries(texts, texts, max_size=2),
        "include": st.lists(texts, max_size=2),
        "store": st.booleans(),
        "previous_response_id": texts,
        "truncation": st.just("disabled"),
        "stream": st.booleans(),
    }
)


def no_body_is_too_bad(http: httpx.Client, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": MODEL, "input": QUESTION, "max_output_tokens": 3} | fields)
    reply = http.post("/v1/responses", content=body)
    assert reply.status_code in (200, 400), (body, reply.text)
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"], (body, error)
    elif "event-stream" in reply.headers["content-type"]:
        *_, last = reply.text.strip().split("\n\n")
        assert last.startswith(("event: response.completed\n", "event: response.incomplete\n")), (body, last)
    elif (response := reply.json())["store"]:
        assert http.get(f"/v1/responses/{response['id']}").json() == response, body


def try_bodies(url: str, count: int, number: int | None = None) -> None:
    """Some nearly right ones, and some that may be anything."""
    number = random.randrange(2**32) if number is None else number
    print(f"seed {number}")  # shown with what fails
    chosen = seed(number), settings(deadline=None, max_examples=count, database=None)
    with httpx.Client(base_url=url, headers={"x-api-key": "a-key"}, timeout=60) as http:
        trial: Any = given(st.just(http), bodies | anything.map(lambda value: {"input": value}))(no_body_is_too_bad)
        for decorate in chosen:
            trial = decorate(trial)
        trial()


def test_no_body_is_too_bad(keeping: str) -> None:
    try_bodies(keeping, 200)


@pytest.mark.slow
def test_of_many_bodies_none_is_too_bad(keeping: str) -> None:
    try_bodies(keeping, 2000)
