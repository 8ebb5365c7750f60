"""Formats detected from chat templates, and requests checked against them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.events import ReasoningPiece, TextPiece
from apps.llm.chat.formats.deepseek import DeepSeek
from apps.llm.chat.formats.gemma import GEMMA4, Gemma
from apps.llm.chat.formats.mistral import Mistral
from apps.llm.chat.model_format import ModelFormat, shows_late_system
from apps.llm.chat.tools import Tool, ToolUse
from apps.llm.text_api import SamplingParams
from tests.llm.chat.written import pieces_of
from tests.llm.text import chat_models

ASK = Tool("ask", "tools[0].function")


def shown(format_: ModelFormat, request: ChatRequest) -> dict[str, Any]:
    """What the chat template gets."""
    given: dict[str, Any] = {}
    format_.rendered(request, lambda *what: given.update(zip(("messages", "tools", "fields"), what)) or "")
    return given


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
        ("{{ tools }}<|channel|>analysis", "Harmony", None),
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
    channels = "{{ tools }} <|channel|>"
    assert not ModelFormat.of(channels, "none").takes_tools and ModelFormat.of(channels, "none").framed
    assert type(ModelFormat.of(channels, "hermes").calls).__name__ == "Hermes"
    told = [ModelFormat.of(channels, "auto", kind).turn(ChatRequest([]), "").reader() for kind in ("auto", "none")]
    events = [pieces_of(reader, ["<|channel|>analysis<|message|>Hm"]) for reader in told if reader]
    assert events == [[ReasoningPiece("Hm")], [TextPiece("Hm")]]


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
    conversation.answer("", None, [PastCall("call_0123456789", "ask", ""), PastCall("abcdefgh9", "ask", "")])
    conversation.result("call_0123456789", "no", "f")
    conversation.result("abcdefgh9", "yes", "f")
    calls, first, second = shown(ModelFormat.of("tools [TOOL_CALLS]"), ChatRequest(conversation.messages))["messages"]
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]] and ids[1] == "abcdefgh9"
    assert len(ids[0]) == 9 and ids[0].isalnum()
    assert conversation.messages[1]["tool_call_id"] == "call_0123456789"  # the conversation itself is unchanged


def test_harmonys_template_gets_one_call_a_message_and_what_it_needs() -> None:
    """OpenAI's template writes a message's first call alone, and refuses text beside both reasoning and a call."""
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("I look.", "Two days.", [PastCall(i, "ask", f'{{"days": {i}}}') for i in "12"])
    conversation.result("2", "no", "f")
    conversation.result("1", "yes", "f")
    conversation.answer("Both.", "So.")
    request = ChatRequest(conversation.messages, ToolUse([ASK]), {"reasoning_effort": "xhigh", "other": 1})
    given = shown(ModelFormat.of("tools <|channel|>"), request)
    assert given["fields"] == {"reasoning_effort": "high", "other": 1}
    assert given["tools"][0]["function"]["description"] == ""
    _, first, one, second, other, last = given["messages"]
    assert [(m["thinking"], m["content"]) for m in (first, second, last)] == [
        ("Two days.\n\nI look.", ""),
        ("", ""),
        ("So.", "Both."),
    ]
    assert [[call["id"] for call in m["tool_calls"]] for m in (first, second)] == [["1"], ["2"]]
    assert (one["content"], other["content"]) == ("yes", "no")
    for wished, known in (("none", "low"), ("minimal", "low"), ("medium", "medium")):
        request = replace(request, template_fields={"reasoning_effort": wished})
        assert shown(ModelFormat.of("<|channel|>"), request)["fields"]["reasoning_effort"] == known


@pytest.mark.parametrize("arguments", ["[1]", "{", "7", '"{}"', "[" * 100_000])
def test_the_model_sees_its_bad_arguments_again(arguments: str) -> None:
    conversation = Conversation()
    conversation.answer("", None, [PastCall("a", "ask", arguments)])
    (call,) = conversation.messages[0]["tool_calls"]
    assert call["function"]["arguments"] == {"invalid_arguments": arguments}


SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{% endfor %}"
)
SYSTEM_LEFT_OUT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "late"), [(SYSTEM_FIRST, False), (SYSTEM_LEFT_OUT, False), (chat_models.TEMPLATES["none"], True)]
)
def test_a_template_that_shows_no_late_system_message_gets_none(template: str, late: bool) -> None:
    def render(messages: Any, tools: Any, fields: Any) -> str:
        try:
            return render_jinja_template([messages], chat_template=template)[0][0]
        except TemplateError as error:
            raise RequestError("messages", str(error)) from error

    format_ = replace(ModelFormat.of(template), late_system=shows_late_system(render))
    assert format_.late_system == late
    conversation = Conversation()
    for role, text in (("system", "Rules."), ("user", "Copy it."), ("system", "Agents."), ("system", "Skills.")):
        conversation.say(role, text)
    conversation.answer("", None, [PastCall("a", "ask", "{}")])
    conversation.result("a", "done", "f")
    conversation.say("system", "Be quick.")
    conversation.answer("Copied.")
    conversation.say("system", "A new day.")
    conversation.say("user", "Again.")
    request = ChatRequest(conversation.messages)
    prompt = format_.rendered(request, render)
    said = ["Rules.", "Copy it.", "Agents.", "Skills.", "done", "Be quick.", "Copied.", "A new day.", "Again."]
    places = [prompt.index(text) for text in said]
    assert places == sorted(places)
    if not late:
        given = [(m["role"], m["content"]) for m in shown(format_, request)["messages"]]
        assert given == [
            ("system", "Rules."),
            ("user", "Copy it.\n\nAgents.\n\nSkills."),
            ("assistant", ""),
            ("tool", "done\n\nBe quick."),
            ("assistant", "Copied."),
            ("user", "A new day.\n\nAgain."),
        ]


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["string", "null"]}, {"type": 3}])
def test_arguments_that_are_no_object_cannot_be_held(parameters: Any) -> None:
    with pytest.raises(RequestError) as refused:
        ToolUse(
            [Tool("ask", "tools[0]", parameters=parameters, schema_field="input_schema")], "required"
        ).constrained_calls()
    assert refused.value.field == "tools[0].input_schema"
