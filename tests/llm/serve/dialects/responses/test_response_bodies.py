"""Errors for bad bodies name the field, and no body causes a server failure."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.serve.dialects.nearly_right import anything, fields, schemas, texts
from tests.llm.serve.dialects.responses.asking import HEADERS, QUESTION, TOOL, WEATHER
from tests.llm.serve.serving import MODEL, LocalServer


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "no"}
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
        ({"input": user({"type": "input_image", "image_url": "x"})}, "input[0].content[0].image_url"),
        ({"input": user({"type": "input_text"})}, "input[0].content[0].text"),
        ({"input": [RESULT]}, "input[0].call_id"),
        ({"input": [CALL, RESULT | {"call_id": "b"}]}, "input[1].call_id"),
        ({"input": "x " * 3000}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"tools": [{"type": "file_search"}]}, "tools[0]"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": []}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [TOOL, TOOL]}]}, "tools[0].tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
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
        ({"top_p": -0.1}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
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
    reply = httpx.post(f"{keeping}/v1/responses", json=body, headers=HEADERS)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error") and error["message"], error


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_what_would_be_no_json_is_refused(chat_server: LocalServer, number: str) -> None:
    body = json.dumps({"input": "x", "tools": [TOOL | {"parameters": {"a": "?"}}]}).replace('"?"', number)
    reply = httpx.post(f"{chat_server.url}/v1/responses", content=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[0].parameters")


def right(known: dict[str, st.SearchStrategy[Any]], needed: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """An object with some of its fields, each valid by itself."""
    optional = {name: strategy for name, strategy in known.items() if name not in needed}
    return st.fixed_dictionaries({name: known[name] for name in needed}, optional=optional)


def conversations(pairs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [item for pair in pairs for item in pair]


said = texts | st.just([{"type": "input_text", "text": "Rain?"}, {"type": "output_text", "text": "no"}])
message = right(
    {"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": said}, ("role", "content")
)
call_of = {
    "type": st.just("function_call"),
    "call_id": st.just("a"),
    "name": texts,
    "arguments": st.just('{"a": [1]}') | texts,
    "namespace": st.none() | texts,
}
thought = {"type": st.just("reasoning"), "summary": st.just([]), "id": texts}
turns = st.one_of(
    message.map(lambda item: [item]),
    right(call_of, tuple(call_of)).map(lambda item: [item, RESULT]),
    right(thought, ("type",)).map(lambda item: [item]),
)
functions = right(
    {
        "type": st.just("function"),
        "description": texts,
        "parameters": st.just(WEATHER) | schemas,
        "strict": st.booleans(),
    },
    ("type",),
)
grouped = functions.map(lambda f: {"type": "namespace", "tools": [f | {"name": "h"}]})
searches = st.just({"type": "web_search", "external_web_access": False})
named = {"type": "function", "name": "f"}
formats = st.sampled_from([{"type": "text"}, {"type": "json_object"}]) | schemas.map(
    lambda schema: {"type": "json_schema", "name": "x", "schema": schema}
)
KNOWN = {
    "input": texts | st.lists(turns, max_size=3).map(conversations),
    "instructions": texts,
    "tools": st.lists(functions | grouped | searches, max_size=2).map(
        lambda tools: [t | {"name": n} for t, n in zip(tools, "fg")]
    ),
    "tool_choice": st.sampled_from(
        ["none", "auto", "required", named, {"type": "allowed_tools", "mode": "auto", "tools": [named]}]
    ),
    "parallel_tool_calls": st.booleans(),
    "reasoning": right({"effort": st.sampled_from(["none", "low", "max"]), "summary": st.just("auto")}),
    "text": right({"format": formats, "verbosity": texts}),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "max_output_tokens": st.integers(1, 4),
    "metadata": st.dictionaries(texts, texts, max_size=2),
    "include": st.lists(texts, max_size=2),
    "store": st.booleans(),
    "previous_response_id": st.just("the last one"),
    "truncation": st.just("disabled"),
    "stream": st.booleans(),
}
item = fields(
    {"type": texts, "role": texts, "content": anything, "call_id": texts, "arguments": texts, "output": texts}
)
bodies = st.one_of(
    right(KNOWN),
    st.tuples(right(KNOWN), st.sampled_from(sorted(KNOWN)), anything).map(
        lambda wrong: wrong[0] | {wrong[1]: wrong[2]}
    ),
    st.tuples(right(KNOWN), st.lists(item, max_size=2)).map(lambda wrong: wrong[0] | {"input": wrong[1]}),
    fields(KNOWN),
)


class Trials:
    """Sends bodies; counts the statuses of the answers."""

    def __init__(self, http: httpx.Client):
        self.http, self.last = http, ""
        self.answers: Counter[int] = Counter()

    def no_body_is_too_bad(self, fields: dict[str, Any]) -> None:
        body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 3} | fields
        if body.get("previous_response_id") == "the last one":
            body["previous_response_id"] = self.last or None
        written = json.dumps(body)
        reply = self.http.post("/v1/responses", content=written)
        self.answers[reply.status_code] += 1
        assert reply.status_code in (200, 400), (written, reply.text)
        if reply.status_code == 400:
            error, self.last = reply.json()["error"], ""
            assert error["type"] == "invalid_request_error" and error["message"], (written, error)
            return
        response = reply.json() if not body.get("stream") else self.last_of(reply.text)
        assert response["status"] in ("completed", "incomplete") and response["output"], (written, response)
        if response["store"]:
            self.last = response["id"]
            assert self.http.get(f"/v1/responses/{self.last}").json() == response, written

    @staticmethod
    def last_of(stream: str) -> Any:
        """The response of a stream's last event."""
        *_, last = stream.strip().split("\n\n")
        kind, _, data = last.partition("\n")
        response = json.loads(data.removeprefix("data: "))["response"]
        assert kind == f"event: response.{response['status']}"
        return response


def try_bodies(url: str, count: int) -> Counter[int]:
    """Number of answers by status. Bodies are valid, wrong in one place, or wrong in many."""
    with httpx.Client(base_url=url, headers=HEADERS, timeout=60) as http:
        trials = Trials(http)
        settings(max_examples=count)(given(bodies)(trials.no_body_is_too_bad))()
    return trials.answers


@pytest.mark.slow
def test_no_body_is_too_bad(keeping: str) -> None:
    answers = try_bodies(keeping, 200)
    assert answers[200] > 5 and answers[400] > 5, answers  # otherwise the bodies are too uniform


@pytest.mark.slow
def test_of_many_bodies_none_is_too_bad(keeping: str) -> None:
    try_bodies(keeping, 2000)
