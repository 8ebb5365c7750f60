"""Anthropic's messages, converted for chat templates."""

import json
from typing import Any

import pytest

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest
from apps.llm.http.anthropic.requests import MessagesBody


def request(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 5, "messages": list(messages), **more}
    return MessagesBody.model_validate_json(json.dumps(body)).request()


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(call: str, content: Any = "no", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **more}


def use(call: str, name: str = "f", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


CACHED = {"cache_control": {"type": "ephemeral"}}


def test_texts_are_the_same_as_string_and_as_blocks() -> None:
    plain = request(user("Hello"), system="Be brief.")
    blocks = request(user(text("Hello", **CACHED)), system=[text("Be brief.", **CACHED)], metadata={"user_id": "u"})
    assert plain == blocks
    assert plain.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_blocks_and_turns_of_one_role_are_paragraphs() -> None:
    assistant = {"role": "assistant", "content": "c"}
    messages = request(user(text("a"), text("b")), user("B"), assistant, assistant, user("d"), system=[]).messages
    assert [message["content"] for message in messages] == ["a\n\nb\n\nB", "c\n\nc", "d"]
    later = request(user("a"), {"role": "system", "content": "new rules"}, user("b")).messages
    assert [message["role"] for message in later] == ["user", "system", "user"]


def test_calls_results_and_thoughts() -> None:
    thought = {"type": "thinking", "thinking": "rain?", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    calls = {"role": "assistant", "content": [thought, redacted, text("Let me see."), use("1", city="Lyon"), use("2")]}
    answered = user(
        result("2", [text("a"), text("b")]), text("And?"), result("1", is_error=True, **CACHED), result("1", None)
    )
    _, called, *results, asked = request(user("Rain?"), calls, answered).messages
    assert (called["content"], called["reasoning_content"]) == ("Let me see.", "rain?")
    assert [call["function"] for call in called["tool_calls"]] == [
        {"name": "f", "arguments": {"city": "Lyon"}},
        {"name": "f", "arguments": {}},
    ]
    assert [(message["tool_call_id"], message["content"]) for message in results] == [
        ("2", "a\n\nb"),
        ("1", "Error: no"),
        ("1", ""),
    ]
    assert asked == {"role": "user", "content": "And?"}


@pytest.mark.parametrize(
    ("choice", "mode", "only", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "tool", "name": "f"}, "required", "f", True),
        ({"type": "none", "name": "f"}, "none", None, True),
    ],
)
def test_tool_choice(choice: Any, mode: str, only: str | None, parallel: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"name": "f" * 100, "description": "d", "input_schema": schema, "strict": True, "type": "custom", **CACHED}
    tools = request(user("x"), tools=[tool, tool | {"name": "f"}], tool_choice=choice).tools
    tools.check()
    assert (tools.mode, tools.only, tools.parallel) == (mode, only, parallel)
    assert tools.tools[1].parameters == schema and tools.tools[1].strict and tools.tools[1].description == "d"


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2000}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
    ],
)
def test_thinking_is_the_templates_switch(thinking: Any, thinks: bool) -> None:
    assert request(user("x"), thinking=thinking).template_fields["enable_thinking"] is thinks


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([user(use("1"))], "messages[0].content[0]"),
        ([user("x"), user(text("x"), {"type": "thinking", "thinking": "x"})], "messages[1].content[1]"),
        ([{"role": "assistant", "content": [result("1")]}, user("x")], "messages[0].content[0]"),
        ([user(result("1"))], "messages[0].content[0].tool_use_id"),
        ([{"role": "assistant", "content": [use("1")]}, user("x"), user(result("2"))], "messages[2].content[0]"),
        ([user("x"), {"role": "assistant", "content": "And so"}], "messages"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        request(*messages)
    assert refused.value.field.startswith(field) and refused.value.field in str(refused.value)
