"""The input of a response, converted for chat templates and as stored."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem, Tool
from pydantic import TypeAdapter

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest
from apps.llm.http.responses.items import ITEMS
from apps.llm.http.responses.requests import ResponseBody


def body(input: Any, **more: Any) -> ResponseBody:
    return ResponseBody.model_validate_json(json.dumps({"input": input, **more}))


def request(*items: dict[str, Any], **more: Any) -> ChatRequest:
    return body(list(items), **more).request()


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": json.dumps(arguments)}


def result(call_id: str, output: Any = "no") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "rain?"}]}
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}], "encrypted_content": "x"}


def test_items_become_turns() -> None:
    messages = request(
        {"role": "developer", "content": "Rules."},
        said("user", "a", "b"),
        said("user", "c"),
        THOUGHT,
        said("assistant", "Let me see."),
        call("1", city="Lyon"),
        call("2"),
        result("2", [{"type": "input_text", "text": "dry"}]),
        result("1"),
        SUMMARY,
        {"role": "assistant", "content": "No."},
        instructions="Be brief.",
    ).messages
    system, asked, called, *results, last = messages
    assert system == {"role": "system", "content": "Be brief.\n\nRules."}
    assert asked == {"role": "user", "content": "ab\n\nc"}
    assert (called["content"], called["reasoning_content"]) == ("Let me see.", "rain?")
    assert [each["function"]["arguments"] for each in called["tool_calls"]] == [{"city": "Lyon"}, {}]
    assert [(each["tool_call_id"], each["content"], each["name"]) for each in results] == [
        ("2", "dry", "f"),
        ("1", "no", "f"),
    ]
    assert last == {"role": "assistant", "content": "No.", "reasoning_content": "in short"}


def test_kept_items_are_the_clients_own_types_and_read_as_before() -> None:
    items = [said("user", "a"), {"role": "assistant", "content": "b"}, THOUGHT, SUMMARY, call("1"), result("1")]
    asked = body(items)
    kept = [item.stored() for item in asked.items()]
    for item in kept:
        TypeAdapter(ResponseItem).validate_python(item)
    assert kept[2]["id"] == "rs_1" and len({item["id"] for item in kept}) == len(kept)
    later = ITEMS.validate_python(json.loads(json.dumps(kept)))
    assert body("x").request(later).messages == request(*items, said("user", "x")).messages


def test_instructions_are_not_part_of_what_is_continued() -> None:
    earlier = ITEMS.validate_python([item.stored() for item in body("a", instructions="Old.").items()])
    messages = body("b", instructions="New.").request(earlier).messages
    assert [message["content"] for message in messages] == ["New.", "a\n\nb"]


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        (None, "auto", ["f", "g"], True),
        ("required", "required", ["f", "g"], False),
        ({"type": "function", "name": "g"}, "required", ["g"], True),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "auto",
            ["f"],
            True,
        ),
        ("none", "none", [], True),
    ],
)
def test_tool_choice(choice: Any, mode: str, names: list[str], parallel: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "name": name, "parameters": schema, "strict": name == "f"} for name in "fg"]
    asked = body("x", tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
    use = asked.request().tools
    use.check()
    assert (use.mode, [tool.name for tool in use.offered], use.parallel) == (mode, names, parallel)
    assert [tool.strict for tool in use.offered] == [name == "f" for name in names]
    assert asked.repeated()["tool_choice"] == (choice or "auto")


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_effort_is_the_templates(effort: str, thinks: bool) -> None:
    fields = body("x", reasoning={"effort": effort}).request().template_fields
    assert (fields["reasoning_effort"], fields["enable_thinking"]) == (effort, thinks)
    assert not body("x").request().template_fields


@pytest.mark.parametrize(
    ("format_", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "array"}}, {"type": "array"}),
    ],
)
def test_the_texts_format(format_: dict[str, Any], schema: Any) -> None:
    asked = body("x", text={"format": format_, "verbosity": "low"}, temperature=0.5, max_output_tokens=7)
    params = asked.params()
    assert (params.json_schema, params.temperature, params.max_tokens) == (schema, 0.5, 7) and params.within_context
    assert asked.repeated()["text"] == {"format": format_}


def test_a_namespaces_functions_are_offered_and_a_search_is_not() -> None:
    """Codex sends both with each request."""
    f = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    tools = [f, {"type": "namespace", "name": "team", "tools": [f, f | {"name": "g"}]}, {"type": "web_search"}]
    asked = body(
        [said("user", "a"), call("1") | {"namespace": "team"}, result("1")],
        tools=tools,
        tool_choice={"type": "function", "namespace": "team", "name": "g"},
    )
    use = asked.request().tools
    use.check()
    assert [(tool.name, tool.field) for tool in use.tools] == [
        ("f", "tools[0]"),
        ("team__f", "tools[1].tools[0]"),
        ("team__g", "tools[1].tools[1]"),
    ]
    assert use.only == "team__g"
    assert asked.functions() == {"f": (None, "f"), "team__f": ("team", "f"), "team__g": ("team", "g")}
    _, called, told = asked.request().messages
    assert called["tool_calls"][0]["function"]["name"] == told["name"] == "team__f"
    kept = [item.stored() for item in asked.items()]
    assert kept[1]["namespace"] == "team"
    TypeAdapter(ResponseItem).validate_python(kept[1])
    repeated = TypeAdapter(list[Tool]).validate_python(asked.repeated()["tools"])
    assert [tool.type for tool in repeated] == ["function", "namespace"]


def test_what_an_earlier_turn_has_wrong_names_it() -> None:
    earlier = ITEMS.validate_python([said("user", "a"), result("1")])
    with pytest.raises(RequestError, match="no call '1'") as refused:
        body([said("user", "b")]).request(earlier)
    assert refused.value.field == "previous_response_id.items[1].call_id"
