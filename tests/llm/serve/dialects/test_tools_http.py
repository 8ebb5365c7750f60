"""Tools and reasoning over HTTP: the official client drives a tiny random model; bad bodies name their field."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.llm.serve.dialects.nearly_right import anything, fields, schemas, texts
from tests.llm.serve.serving import MODEL, LocalServer

HELLO = [{"role": "user", "content": "Rain in Lyon?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}


QUICK = {"chat_template_kwargs": {"enable_thinking": False}}  # a random model may reason forever


def tool(name: str = "get_weather", parameters: Any = WEATHER, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.fixture
def client(chat_server: LocalServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = HELLO, **fields: Any) -> Any:
    fields = {"tools": [tool()], "tool_choice": "required", "max_tokens": 250, "seed": 1, "extra_body": QUICK} | fields
    fields = {"logit_bias": {1: 5}} | fields  # at most a few calls before the end of sequence
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def test_a_required_call(client: openai.OpenAI) -> None:
    choice = ask(client).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    for call in choice.message.tool_calls:
        assert call.type == "function" and call.function.name == "get_weather"
        Draft202012Validator(WEATHER).validate(json.loads(call.function.arguments))
    assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_one_by_name_and_not_in_parallel(client: openai.OpenAI) -> None:
    tools = [tool(), tool("now", None), tool("later", {"type": "object"}, description="x")]
    named = {"type": "function", "function": {"name": "now"}}
    calls = ask(client, tools=tools, tool_choice=named).choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments.replace(" ", "").strip("{}\n")) for call in calls] == [
        ("now", "")
    ]
    for seed in range(5):
        message = ask(client, parallel_tool_calls=False, seed=seed).choices[0].message
        assert len(message.tool_calls) == 1


@pytest.mark.usefixtures("token_by_token")
def test_the_stream_has_the_same_calls(client: openai.OpenAI) -> None:
    fields = {"seed": 4, "n": 2, "stream_options": {"include_usage": True}}
    whole = ask(client, seed=4, n=2)
    calls: list[dict[int, dict[str, str]]] = [{}, {}]
    reasons: list[str | None] = [None, None]
    chunks = list(ask(client, stream=True, **fields))
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        for piece in choice.delta.tool_calls or ():
            if piece.id:
                assert piece.index == len(calls[choice.index]) and piece.type == "function"
                calls[choice.index][piece.index] = {"name": piece.function.name, "arguments": ""}
            else:
                assert piece.function.name is None
            calls[choice.index][piece.index]["arguments"] += piece.function.arguments
        assert not choice.delta.content and reasons[choice.index] is None
        reasons[choice.index] = choice.finish_reason
    assert reasons == ["tool_calls", "tool_calls"]
    assert [[call for _, call in sorted(one.items())] for one in calls] == [
        [{"name": call.function.name, "arguments": call.function.arguments} for call in choice.message.tool_calls]
        for choice in whole.choices
    ]
    assert len(chunks) > 20 and chunks[-1].usage == whole.usage


def test_the_clients_own_stream_parses_strict_arguments(client: openai.OpenAI) -> None:
    fields: Any = {"tools": [tool(strict=True)], "tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    with client.chat.completions.stream(model=MODEL, messages=HELLO, extra_body=QUICK, **fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    for call in final.message.tool_calls:
        Draft202012Validator(WEATHER).validate(call.function.parsed_arguments)


def test_text_comes_before_a_strict_call_in_one_stream(client: openai.OpenAI, chat_server: LocalServer) -> None:
    """With `auto` the model chooses whether to call; a bias makes a call likely after a few tokens."""
    mark = chat_server.engine.tokenizer.fast.token_to_id("<tool_call>")
    fields: Any = {"tools": [tool(strict=True)], "tool_choice": "auto", "parallel_tool_calls": False}
    both = 0
    for seed in range(8):
        kinds, reason = [], None
        for chunk in ask(client, stream=True, seed=seed, logit_bias={mark: 3}, **fields):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
            kinds += ["text"] * bool(delta.content) + ["call"] * bool(delta.tool_calls)
        assert kinds == sorted(kinds, reverse=True)  # no text after the call
        assert reason == ("tool_calls" if "call" in kinds else "length") or reason == "stop"
        both += {"text", "call"} <= set(kinds)
    assert both


def test_a_conversation_with_results_goes_on(client: openai.OpenAI) -> None:
    message = ask(client, parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": [{"type": "text", "text": "no"}]}
    longer = ask(client, [*HELLO, message, result], tool_choice="none")
    again = ask(client, [*HELLO, message.model_dump(), result], tool_choice="none")
    assert longer.choices[0].message.content == again.choices[0].message.content
    assert longer.choices[0].message.tool_calls is None and longer.choices[0].finish_reason in ("stop", "length")
    assert longer.usage.prompt_tokens > ask(client, tool_choice="none", max_tokens=1).usage.prompt_tokens + 50


HALF = r'{"city": "\ud83d", "\ude00": [NaN, 1e999], "days": 1700000000000}'


def test_a_conversation_goes_on_after_arguments_that_no_text_can_have(chat_server: LocalServer) -> None:
    """Half of a character, as a model may write it and every turn sends it; a message before the call's result."""
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": HALF}}
    between, result = {"role": "user", "content": "Well?"}, {"role": "tool", "tool_call_id": "a", "content": "no"}
    chat = {"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}, between, result]}
    item = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": HALF}
    output = {"type": "function_call_output", "call_id": "a", "output": "no"}
    response = {"input": [*HELLO, item, between, output], "store": False}
    use = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "\ufffd"}}
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no"}]}
    turns = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "system", "content": "Be brief."}, told]
    for path, body in {
        "/v1/chat/completions": chat | {"max_tokens": 2},
        "/v1/responses": response | {"max_output_tokens": 2},
        "/v1/messages": {"messages": turns, "max_tokens": 2},
    }.items():
        for stream in (False, True):
            asked = {"model": MODEL, "stream": stream, **body}
            answer = httpx.post(f"{chat_server.url}{path}", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text


LARGE = [2**63, -(2**64), 10**400, -(10**4000)]
KEYWORDS = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "const",
    "default",
    "maxLength",
    "minItems",
    "x-size",
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("number", LARGE, ids=lambda number: f"{number.bit_length()} bits")
def test_large_integers_in_a_schema_are_no_fault(chat_server: LocalServer, number: int, strict: bool) -> None:
    """Whatever the keyword: they are followed, or refused by the field's name. Not enforced, they are only shown."""
    for i, keyword in enumerate(KEYWORDS):
        schema = {
            "type": "object",
            "properties": {"a": {keyword: number}, "b": {"enum": [[number]]}},
            "required": ["b"],
        }
        function = {"name": "f", "strict": strict, "parameters": schema}
        format_ = {"type": "json_schema", "name": "a", "schema": schema}
        limited: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
        asked = [
            (
                "/v1/chat/completions",
                limited | {"messages": HELLO, "tools": [{"type": "function", "function": function}]},
            ),
            ("/v1/responses", {"input": "x", "max_output_tokens": 2, "tools": [{"type": "function", **function}]}),
            (
                "/v1/messages",
                limited | {"messages": HELLO, "tools": [{"name": "f", "input_schema": schema, "strict": strict}]},
            ),
            (
                "/v1/completions",
                limited | {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": format_}},
            ),
        ]
        path, body = asked[i % len(asked)]
        answer = httpx.post(f"{chat_server.url}{path}", json=body, timeout=60)
        refused = answer.status_code == 400 and "schema" in answer.text
        assert answer.status_code == 200 or (refused and (strict or path == "/v1/completions")), answer.text


def test_reasoning_is_apart_from_the_content(client: openai.OpenAI, change_template: Callable[[str], None]) -> None:
    fields: dict[str, Any] = {"tools": openai.omit, "tool_choice": openai.omit, "max_tokens": 12}
    thinks, quick, switched = (
        ask(client, **fields, extra_body=extra) for extra in ({}, {"reasoning_effort": "none"}, QUICK)
    )
    assert quick.usage.prompt_tokens > thinks.usage.prompt_tokens  # the prompt has empty reasoning
    assert quick.choices[0].message.content == switched.choices[0].message.content
    change_template("thinking")  # its prompt has the opening mark of the reasoning
    message = ask(client, **fields, extra_body={}).choices[0].message
    assert message.content == "" and message.reasoning_content
    assert message.reasoning == message.reasoning_content
    deltas = [chunk.choices[0].delta for chunk in ask(client, **fields, extra_body={}, stream=True)]
    for name in ("reasoning", "reasoning_content"):  # vLLM's name, and its older one
        assert "".join(getattr(delta, name, None) or "" for delta in deltas) == message.reasoning
    assert not any(delta.content for delta in deltas)


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
def test_reasoning_of_the_history(
    chat_server: LocalServer, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Oracle: the prompt that transformers makes, whose templates know the older name."""
    from apps.llm.http.openai.requests import ChatBody

    hello, answer = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "the quick fox"}
    tokenizer = chat_server.engine.tokenizer
    shown = "{% for m in messages %}[{{ m.role }}] {{ m.reasoning_content or '' }} {{ m.content }}{% endfor %}"
    monkeypatch.setattr(tokenizer._hf, "chat_template", shown)
    expected = tokenizer._hf.apply_chat_template([hello, answer | {"reasoning_content": "Hm."}], tokenize=False)
    body = ChatBody(messages=[hello, answer | dict.fromkeys(names, "Hm.")], add_generation_prompt=False)
    ids, _ = chat_server.engine.chat(body.request())
    assert tokenizer.decode(ids, special=True) == expected and "Hm." in expected


def test_gpt_osss_channels(
    client: openai.OpenAI, chat_server: LocalServer, change_template: Callable[[str], None]
) -> None:
    """Reasoning ends soon by a bias; the stream has what the whole answer has."""
    change_template("harmony")
    fields: dict[str, Any] = {"logit_bias": {chat_server.engine.format.tokens["<|end|>"]: 4.5}, "extra_body": {}}
    fields["max_tokens"] = 190
    seen = set()
    for seed in range(6):
        choice = ask(client, seed=seed, **fields).choices[0]
        deltas = [chunk.choices[0].delta for chunk in ask(client, seed=seed, stream=True, **fields)]
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        arguments = "".join(c.function.arguments for delta in deltas for c in delta.tool_calls or ())
        assert reasoning == getattr(choice.message, "reasoning_content", "")
        if choice.finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls
            assert call.function.arguments == arguments
            Draft202012Validator(WEATHER).validate(json.loads(arguments))
            seen.add("call")
        seen |= {"reasoning"} if reasoning else set()
    assert seen == {"call", "reasoning"}


def test_logprobs_of_a_call(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True).choices[0]
    streamed = [chunk.choices[0] for chunk in ask(client, logprobs=True, stream=True)]
    tokens = [token.token for choice in streamed if choice.logprobs for token in choice.logprobs.content]
    assert tokens == [token.token for token in whole.logprobs.content] and tokens[0] == "<tool_call>"


CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "no"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool(), tool("f"), tool()]}, "tools[2].function.name"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "no"})], "tool_choice": "required"}, "tools[0].function.parameters"),
        (
            {"tools": [tool(), tool("f", {"properties": {"a": {"$ref": "x"}}}, strict=True)]},
            "tools[1].function.parameters",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"messages": [*HELLO, RESULT]}, "messages[1].tool_call_id"),
        ({"messages": [*HELLO, CALLED, RESULT | {"tool_call_id": "b"}]}, "messages[2].tool_call_id"),
        ({"messages": [*HELLO, RESULT, CALLED]}, "messages[1].tool_call_id"),
        ({"messages": [CALLED, {"role": "tool", "content": "no"}]}, "messages[1].tool_call_id"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {"tools": [tool()], "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
            "response_format",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_body_names_the_field(chat_server: LocalServer, fields: dict[str, Any], param: str, stream: bool) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "stream": stream} | fields
    reply = httpx.post(f"{chat_server.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error") and error["message"], error


@pytest.mark.parametrize(("template", "says"), [("none", "does not support tools"), ("unknown", "tool_call_format")])
def test_a_model_that_cannot_be_offered_tools(
    chat_server: LocalServer, change_template: Callable[[str], None], template: str, says: str
) -> None:
    change_template(template)
    url = f"{chat_server.url}/v1/chat/completions"
    refused = httpx.post(url, json={"messages": HELLO, "tools": [tool()]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert says in refused.json()["error"]["message"]
    assert httpx.post(
        url, json={"messages": HELLO, "max_tokens": 2, "tools": [tool()], "tool_choice": "none"}
    ).is_success


functions = fields({"name": texts, "parameters": schemas, "strict": st.booleans()}, ("name",))
bodies = fields(
    {
        "tools": st.lists(
            fields({"type": st.just("function"), "function": functions}, ("type", "function")), max_size=3
        ),
        "tool_choice": st.sampled_from(["none", "auto", "required"])
        | fields({"type": st.just("function"), "function": fields({"name": texts})}),
        "parallel_tool_calls": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low", "high"]),
        "chat_template_kwargs": st.dictionaries(texts, anything, max_size=2),
        "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}]),
        "stream": st.booleans(),
        "messages": st.lists(
            fields(
                {
                    "role": st.sampled_from(["user", "assistant", "tool"]),
                    "content": texts,
                    "reasoning_content": texts,
                    "tool_call_id": texts,
                    "tool_calls": st.lists(
                        fields(
                            {
                                "id": texts,
                                "type": st.just("function"),
                                "function": fields({"name": texts, "arguments": st.just("{}") | texts}),
                            }
                        ),
                        max_size=2,
                    ),
                }
            ),
            max_size=4,
        ),
    }
)


def no_body_is_too_bad(chat_server: LocalServer, fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": HELLO, "tools": [tool()], "max_tokens": 3} | fields)
    reply = httpx.post(f"{chat_server.url}/v1/chat/completions", content=body)
    assert reply.status_code in (200, 400), (body, reply.text)
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"] and error["code"]


def test_no_body_is_too_bad(chat_server: LocalServer) -> None:
    settings(max_examples=60)(given(st.just(chat_server), bodies)(no_body_is_too_bad))()


@pytest.mark.slow
def test_of_many_bodies_none_is_too_bad(chat_server: LocalServer) -> None:
    settings(max_examples=1000)(given(st.just(chat_server), bodies)(no_body_is_too_bad))()
