"""Formats detected from chat templates, and requests checked against them."""

import json
from typing import Any

import pytest

from apps.llm.api import RequestError, SamplingParams
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.formats.deepseek import DeepSeek
from apps.llm.chat.formats.gemma import GEMMA4, Gemma
from apps.llm.chat.formats.mistral import Mistral
from apps.llm.chat.model_format import ModelFormat
from apps.llm.chat.tools import Tool, ToolUse

ASK = Tool("ask", "tools[0].function")


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ("{{ tools }} <tool_call> {{ c }} </tool_call>", "Hermes", None),
        ("{{ tools }} <tool_call> <think>", "Hermes", "<think>"),
        ("{{ tools }} <|start_header_id|>", "Llama", None),
        ("{{ tools }} <|python_tag|>", "Llama", None),
        ("{{ tools }} <|start_header_id|> [func_name1(params)]", "Pythonic", None),
        ("{{ tools }} <|python_start|>", "Pythonic", None),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "Mistral", None),
        ("{{ tools }}[TOOL_CALLS][ARGS][THINK]", "Mistral", "[THINK]"),
        ("{{ tools }}<start_function_call>", "Gemma", None),
        ("{{ tools }}<|tool_call>call:", "Gemma", None),
        ("{{ tools }}<｜tool▁calls▁begin｜> <think>", "DeepSeek", "<think>"),
        ("{{ tools }} Answer in JSON.", "Plain", None),
        ("{{ tools }} <tool_call><function=f>", "NoneType", None),
        ("{{ tools }} <tool_call>f<arg_key>", "NoneType", None),
        ("<think> {{ message }}", "NoneType", "<think>"),
        ("<tool_call> of no use", "NoneType", None),
        ("", "NoneType", None),
    ],
)
def test_a_template_tells_the_format(template: str, calls: str, reasoning: str | None) -> None:
    found = ModelFormat.of(template)
    assert type(found.calls).__name__ == calls
    assert (found.reasoning.opens if found.reasoning else None) == reasoning
    assert found.takes_tools == ("{{ tools }}" in template)


def test_variants_are_told_apart() -> None:
    named, listed = ModelFormat.of("tools [TOOL_CALLS] [ARGS]").calls, ModelFormat.of("tools [TOOL_CALLS]").calls
    assert isinstance(named, Mistral) and named.named and isinstance(listed, Mistral) and not listed.named
    for template, fenced in (("", False), ("```json", True)):
        deepseek = ModelFormat.of(f"tools <｜tool▁calls▁begin｜>{template}").calls
        assert isinstance(deepseek, DeepSeek) and deepseek.fenced == fenced
    gemma = ModelFormat.of("tools <|tool_call>").calls
    assert isinstance(gemma, Gemma) and gemma.marks == GEMMA4


def test_the_config_knows_better() -> None:
    template = "{{ tools }} <tool_call> <think>"
    assert type(ModelFormat.of(template, "pythonic").calls).__name__ == "Pythonic"
    assert ModelFormat.of(template, "none").calls is None
    assert ModelFormat.of(template, "auto", "none").reasoning is None
    assert ModelFormat.of("{{ message }}", "auto", "mistral").marks == ("[THINK]", "[/THINK]")
    assert ModelFormat.of("{{ message }}", "hermes").calls is None  # does not support tools


def test_special_tokens_are_shown_where_they_mean_something() -> None:
    model = ModelFormat.of("{{ tools }} <tool_call> <think>")
    model = ModelFormat(model.calls, model.reasoning, True, {"<tool_call>": 7, "<think>": 8})
    asked = ChatRequest([], ToolUse([ASK]))
    assert model.turn(asked, "").constrained(SamplingParams()).shown_tokens == {7, 8}
    assert model.turn(ChatRequest([]), "").constrained(SamplingParams()).shown_tokens == {8}
    assert model.turn(ChatRequest([]), "<think>\n\n</think>\n\n").constrained(SamplingParams()) == SamplingParams()


def test_a_response_format_lets_a_model_reason_first() -> None:
    model = ModelFormat.of("<think>")
    params = SamplingParams(json_schema=json.dumps({"type": "object"}))
    held = model.turn(ChatRequest([]), "[assistant]<think>\n").constrained(params)
    assert held.json_schema is None and held.grammar is not None and "thought_rest" in held.grammar.lark
    assert ModelFormat().turn(ChatRequest([]), "").constrained(params) == params


def test_ids_of_calls_are_as_mistrals_templates_take_them() -> None:
    conversation = Conversation()
    conversation.answer("", None, [PastCall("call_0123456789", "ask", "", "f"), PastCall("abcdefgh9", "ask", "", "f")])
    conversation.result("call_0123456789", "no", "f")
    conversation.result("abcdefgh9", "yes", "f")
    calls, first, second = ModelFormat.of("tools [TOOL_CALLS]").messages(ChatRequest(conversation.messages))
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]] and ids[1] == "abcdefgh9"
    assert len(ids[0]) == 9 and ids[0].isalnum()
    assert conversation.messages[1]["tool_call_id"] == "call_0123456789"  # the conversation itself is unchanged


@pytest.mark.parametrize("arguments", ["[1]", "{", "7", '"{}"', "[" * 100_000])
def test_arguments_of_past_calls_are_objects(arguments: str) -> None:
    with pytest.raises(RequestError) as refused:
        Conversation().answer("", None, [PastCall("a", "ask", arguments, "messages[0].tool_calls[0]")])
    assert refused.value.field == "messages[0].tool_calls[0]"


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["string", "null"]}, {"type": 3}])
def test_arguments_that_are_no_object_cannot_be_held(parameters: Any) -> None:
    with pytest.raises(RequestError) as refused:
        ToolUse(
            [Tool("ask", "tools[0]", parameters=parameters, schema_field="input_schema")], "required"
        ).constrained_calls()
    assert refused.value.field == "tools[0].input_schema"
