"""Anthropic's messages over HTTP: the official client drives a tiny random model; bad bodies name their field."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.llm.serve.dialects.nearly_right import anything, fields, schemas, texts
from tests.llm.serve.serving import MODEL, LocalServer

HELLO = [{"role": "user", "content": "Rain in Lyon?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "Forecast.", "input_schema": WEATHER}
ONE_CALL = {"type": "any", "disable_parallel_tool_use": True}
GREEDY: Any = {"extra_body": {"temperature": 0}}  # without a seed, sampling could return anything


@pytest.fixture
def client(chat_server: LocalServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=chat_server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: anthropic.Anthropic, messages: Any = HELLO, **body: Any) -> anthropic.types.Message:
    body = {"max_tokens": 9} | GREEDY | body
    return client.messages.create(model=MODEL, messages=messages, **body)


def test_a_whole_answer(client: anthropic.Anthropic) -> None:
    message = ask(client, system="Be brief.", extra_body={"temperature": 0, "top_k": 5, "top_p": 0.9})
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence, message.usage.output_tokens) == ("max_tokens", None, 9)
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message._request_id.startswith("req_")
    (letter,) = {block.text[3]}
    stopped = ask(client, system="Be brief.", stop_sequences=["\0\0", letter])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", letter)
    assert block.text.startswith(stopped.content[0].text) and letter not in stopped.content[0].text


@pytest.mark.usefixtures("token_by_token")
def test_the_stream_is_the_same_message(client: anthropic.Anthropic) -> None:
    whole = ask(client, max_tokens=30)
    with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=30, **GREEDY) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == "".join(texts) == whole.content[0].text and len(texts) > 5
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, 30)


@pytest.mark.usefixtures("token_by_token")
def test_tools_over_two_turns(client: anthropic.Anthropic) -> None:
    offer: Any = {"model": MODEL, "tools": [TOOL], "max_tokens": 200, **GREEDY}
    with client.messages.stream(**offer, messages=HELLO, tool_choice=ONE_CALL) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use" and kinds.count("input_json") > 5
    (call,) = called.content
    assert call.type == "tool_use" and call.name == "get_weather"
    Draft202012Validator(WEATHER).validate(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "no"}]}
    longer = [*HELLO, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    said = ask(client, longer, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=5)
    assert said.stop_reason in ("end_turn", "max_tokens") and all(block.type == "text" for block in said.content)
    total = said.usage.input_tokens + said.usage.cache_read_input_tokens
    first = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    assert total > first + 50
    named = ask(
        client, tools=[TOOL, TOOL | {"name": "now"}], tool_choice={"type": "tool", "name": "now"}, max_tokens=99
    )
    assert [block.name for block in named.content] == ["now"]


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    for i, more in enumerate(({}, {"tool_choice": {"type": "any"}}, {"thinking": thinking})):
        more |= {"tools": [TOOL | {"name": f"{i}_weather"}]}  # changes the prompt's beginning, so nothing is cached
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO, **more).input_tokens
        first, again = (ask(client, max_tokens=1, **more).usage for _ in range(2))
        for usage in (first, again):
            assert usage.input_tokens + usage.cache_read_input_tokens == counted
        assert first.input_tokens == counted
        assert again.cache_read_input_tokens >= counted // 16 * 16 - 16 > 0


def test_thinking_is_asked_for(client: anthropic.Anthropic, change_template: Callable[[str], None]) -> None:
    asked, not_asked, off = (
        client.messages.count_tokens(model=MODEL, messages=HELLO, thinking=thinking).input_tokens
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, anthropic.omit, {"type": "disabled"})
    )
    assert off == not_asked > asked  # the prompt has empty reasoning
    change_template("thinking")  # its prompt has the opening mark of the reasoning
    message = ask(client, max_tokens=12)
    assert [block.type for block in message.content] == ["thinking"] and message.content[0].signature
    again = [*HELLO, {"role": "assistant", "content": message.content}, *HELLO]
    assert ask(client, again).usage.output_tokens


def test_an_answer_in_json(client: anthropic.Anthropic) -> None:
    message = ask(client, output_config={"format": {"type": "json_schema", "schema": WEATHER}}, max_tokens=200)
    Draft202012Validator(WEATHER).validate(json.loads(message.content[0].text))


def test_max_tokens_may_be_more_than_the_context_holds(client: anthropic.Anthropic) -> None:
    answer = {"type": "array", "minItems": 400, "items": {"type": "integer"}}
    long = {"format": {"type": "json_schema", "schema": WEATHER | {"properties": {"city": answer, "days": answer}}}}
    message = ask(client, max_tokens=32_000, output_config=long)
    assert message.stop_reason == "model_context_window_exceeded"
    assert sum((message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens)) == 512


def test_the_clients_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'claude' does not exist"):
        client.messages.create(model="claude", messages=HELLO, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
        ask(client, [{"role": "user", "content": "x " * 3000}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert refused.value.request_id == refused.value.body["request_id"]


def test_other_refusals_have_the_same_form(chat_server: LocalServer) -> None:
    url = f"{chat_server.url}/v1/messages"
    for reply, status, kind in (
        (httpx.post(url, content=b"{bad"), 400, "invalid_request_error"),
        (httpx.post(url, content=b"[]"), 400, "invalid_request_error"),
        (httpx.post(url, content=b" " * (33 * 2**20), timeout=60), 413, "request_too_large"),
        (httpx.get(url), 405, "invalid_request_error"),
        (httpx.post(f"{url}/batches"), 404, "not_found_error"),
    ):
        body = reply.json()
        assert (reply.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
        assert body["error"]["message"] and body["request_id"] == reply.headers["request-id"]


DOCUMENT = {"type": "document"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "So"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "this server's models read no documents"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [DOCUMENT]}]}
                ]
            },
            "messages[0].content[0].content[0]",
        ),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools[0]: input_schema"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": {"type": "no"}}], "tool_choice": {"type": "any"}}, "tools[0].input_schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}},
            "output_config.format.schema",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_body_names_the_field(chat_server: LocalServer, body: dict[str, Any], field: str, stream: bool) -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": HELLO, "stream": stream} | body
    reply = httpx.post(f"{chat_server.url}/v1/messages", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and field in error["message"], error


block = st.one_of(
    fields({"type": st.just("text"), "text": texts, "cache_control": anything}, ("type",)),
    fields({"type": st.just("tool_use"), "id": texts, "name": texts, "input": schemas}, ("type",)),
    fields({"type": st.just("tool_result"), "tool_use_id": texts, "content": texts, "is_error": anything}, ("type",)),
    fields({"type": st.just("thinking"), "thinking": texts, "signature": texts}, ("type",)),
    fields({"type": st.just("redacted_thinking") | texts}),
)
turn = fields(
    {"role": st.sampled_from(["user", "assistant"]), "content": texts | st.lists(block, max_size=3)}, ("role",)
)
bodies = fields(
    {
        "messages": st.lists(turn, max_size=4),
        "system": texts | st.lists(block, max_size=2),
        "tools": st.lists(fields({"name": texts, "input_schema": schemas, "strict": st.booleans()}), max_size=3),
        "tool_choice": fields(
            {
                "type": st.sampled_from(["auto", "any", "tool", "none"]),
                "name": texts,
                "disable_parallel_tool_use": st.booleans(),
            }
        ),
        "thinking": fields({"type": st.sampled_from(["enabled", "disabled"]), "budget_tokens": st.integers(0, 9999)}),
        "output_config": fields(
            {"format": fields({"type": st.just("json_schema"), "schema": schemas}), "effort": texts}
        ),
        "stop_sequences": st.lists(texts, max_size=2),
        "temperature": st.floats(0, 1),
        "top_k": st.integers(0, 9),
        "top_p": st.floats(0, 1),
        "stream": st.booleans(),
        "metadata": anything,
    }
)


def no_body_is_too_bad(http: httpx.Client, fields: dict[str, Any], path: str) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO, "tools": [TOOL], "max_tokens": 3} | fields)
    reply = http.post(f"/v1/messages{path}", content=body)
    assert reply.status_code in (200, 400), (body, reply.text)
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"]
    elif "event-stream" in reply.headers["content-type"]:
        assert reply.text.startswith("event: message_start\n") and "event: message_stop\n" in reply.text


def try_bodies(chat_server: LocalServer, count: int) -> None:
    paths = st.sampled_from(["", "", "/count_tokens"])
    with httpx.Client(base_url=chat_server.url, timeout=60) as http:
        settings(max_examples=count)(given(st.just(http), bodies, paths)(no_body_is_too_bad))()


def test_no_body_is_too_bad(chat_server: LocalServer) -> None:
    try_bodies(chat_server, 40)


@pytest.mark.slow
def test_of_many_bodies_none_is_too_bad(chat_server: LocalServer) -> None:
    try_bodies(chat_server, 500)
