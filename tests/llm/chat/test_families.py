"""What single families need of conversations, and write: each as its card or its own template has it."""

import json
from typing import Any

import pytest

from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.model_format import ModelFormat
from apps.llm.chat.reader import ReasoningMarks
from apps.llm.chat.tools import ToolUse
from tests.llm.chat.rendering import ASK, WITHOUT_TOOLS, asked, call, model, prompt, renderer
from tests.llm.chat.templates import RELEASED
from tests.llm.chat.written import THINK, pieces_of, understood


def one_call(text: str = "", reasoning: str | None = None, **arguments: Any) -> Conversation:
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer(text, reasoning, [call(1, **arguments)])
    conversation.result("call_1", "yes", "f")
    return conversation


def test_llama_calls_one_by_one() -> None:
    """Its template refuses the second call; the model writes no two."""
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("", None, [call(1), call(2)])
    conversation.result("call_2", "no", "f")
    conversation.result("call_1", "yes", "f")
    shown = prompt("Llama 3", conversation)
    parts = ['"days": 1', '"yes"', '"days": 2', '"no"']
    assert sorted(parts, key=shown.index) == parts and shown.count('"parameters": {"days"') == 2
    turn = model("Llama 3").turn(asked(conversation, "Llama 3"), shown)
    answer = '{"name": "ask", "parameters": {}}; {"name": "ask", "parameters": {}}'
    reader = turn.reader()
    assert reader is not None
    again = understood(pieces_of(reader, [answer])).calls
    assert again == [("ask", "{}")]


def test_a_user_after_mistrals_result_is_a_user() -> None:
    """As mistral-common has it, but for the end of an empty answer, without which its template refuses it."""
    conversation = one_call()
    conversation.say("user", "And then?")
    shown = prompt("Mistral Nemo", conversation)
    assert '{"content": "yes", "call_id": "' in shown and shown.endswith("[INST]And then?[/INST]")
    assert "[/TOOL_RESULTS]</s>[AVAILABLE_TOOLS]" in shown


def test_gemmas_rules_are_the_users() -> None:
    conversation = Conversation()
    conversation.say("system", "Rules.")
    conversation.say("user", "Hello.")
    conversation.answer("Hi.")
    conversation.say("system", "More rules.")
    conversation.say("user", "Bye.")
    turns = ["user\nRules.\n\nHello.", "model\nHi.", "user\nMore rules.\n\nBye."]
    expected = "<s>" + "".join(f"<start_of_turn>{turn}<end_of_turn>\n" for turn in turns) + "<start_of_turn>model"
    assert prompt("Gemma 2", conversation) == expected
    alone = Conversation()
    alone.say("system", "Rules.")
    assert "user\nRules.<end_of_turn>" in prompt("Gemma 2", alone)


@pytest.mark.parametrize("name", ["Gemma 4", "Gemma 4, tools' messages"])
def test_gemma_4_reads_results_where_it_calls(name: str) -> None:
    conversation = one_call(at="x", big=1_700_000_000)
    calls = '<|tool_call>call:ask{at:<|"|>x<|"|>,big:1700000000,days:1}<tool_call|>'
    results = '<|tool_response>response:ask{value:<|"|>yes<|"|>}<tool_response|>'
    turn = f"<|turn>model\n{calls}{results}"
    assert prompt(name, conversation, enable_thinking=True).endswith(turn)
    conversation.answer("It rains.")
    conversation.say("user", "Thanks.")
    longer = prompt(name, conversation, enable_thinking=True)
    assert longer.endswith(f"{turn}It rains.<turn|>\n<|turn>user\nThanks.<turn|>\n<|turn>model\n")


@pytest.mark.parametrize(
    ("written", "reasoning", "text"),
    [
        ("<|channel>thought\nHm.\n<channel|>Hello.", "Hm.", "Hello."),
        ("<|channel>thought\n<channel|>Hello.", "", "Hello."),
        ("<|channel>thought<channel|>Hello.", "", "Hello."),
        ("<|channel>thoughtful<channel|>Hello.", "thoughtful", "Hello."),
        ("<|channel>Hm.<channel|>Hello.", "Hm.", "Hello."),
        ("<|channel>thought\nHm.", "Hm.", ""),
        ("<|channel>tho", "tho", ""),
        ("Hello.", "", "Hello."),
    ],
)
def test_gemma_4s_reasoning_is_apart(written: str, reasoning: str, text: str) -> None:
    for pieces in ([written], list(written)):
        conversation = one_call()
        turn = model("Gemma 4").turn(
            asked(conversation, "Gemma 4"), prompt("Gemma 4", conversation, enable_thinking=True)
        )
        reader = turn.reader()
        assert reader is not None
        found = understood(pieces_of(reader, pieces))
        assert (found.reasoning, found.text) == (reasoning, text)


def test_gemma_4_does_not_reason_where_its_prompt_has_ended_it() -> None:
    shown = prompt("Gemma 4", one_call())
    assert shown.endswith("<channel|>") and model("Gemma 4").turn(ChatRequest([]), shown).reasoning is None


def test_phi_sees_tools_and_its_calls() -> None:
    """As its card has them: tools in the system message, calls and results between its marks."""
    conversation = one_call("I look.")
    listed = json.dumps([ASK.card()["function"]])
    assert prompt("Phi-4-mini", conversation) == (
        f"<|system|><|tool|>{listed}<|/tool|><|end|><|user|>Rain?<|end|><|assistant|>I look.\n\n"
        '<|tool_call|>[{"name": "ask", "arguments": {"days": 1}}]<|/tool_call|><|end|>'
        "<|tool_response|>yes<|end|><|assistant|>"
    )
    without = ChatRequest(conversation.messages, ToolUse([ASK], "none"))
    assert "<|tool|>" not in model("Phi-4-mini").rendered(without, renderer(RELEASED["Phi-4-mini"]))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Phi-4-mini", '<|tool_call|>[{"name": "ask", "arguments": {"days": 1}}]<|/tool_call|>'),
        ("Phi-4-mini", 'Yes.<|tool_call|>{"name": "ask", "arguments": {"days": 1}}'),
        ("Phi-4-mini", '[{"name": "ask", "arguments": {"days": 1}}]'),
        ("Phi-4-mini, functools", 'functools[{"name": "ask", "arguments": {"days": 1}}]'),
    ],
)
def test_phis_calls_are_read(name: str, written: str) -> None:
    reader = model(name).turn(ChatRequest([], ToolUse([ASK])), "").reader()
    assert reader is not None
    found = understood(pieces_of(reader, list(written)))
    assert found.loaded() == [("ask", {"days": 1})] and found.text == "Yes." * written.startswith("Yes")


@pytest.mark.parametrize("name", ["DeepSeek V3.1", "DeepSeek R1"])
def test_deepseek_gets_arguments_as_text(name: str) -> None:
    shown = prompt(name, one_call("I look.", at="\u00e9"))
    assert '{"days": 1, "at": "\u00e9"}' in shown and "I look." in shown
    assert model(name).turn(ChatRequest([]), shown).reasoning in (None, THINK)


def test_marks_of_reasoning_are_found() -> None:
    assert model("Gemma 4").reasoning == ReasoningMarks("<|channel>", "<channel|>", "thought\n")
    assert ModelFormat.of("<|channel|>").reasoning is None


def test_half_a_character_of_an_earlier_call_is_shown_as_unknown() -> None:
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("", None, [PastCall("call_1", "ask", '{"at": "\\ud83d", "\\ude00": [NaN, -1e999]}')])
    conversation.result("call_1", "yes", "f")
    for name in set(RELEASED) - set(WITHOUT_TOOLS):
        shown = prompt(name, conversation)
        assert shown.encode().decode().count("\ufffd") == 2, name
