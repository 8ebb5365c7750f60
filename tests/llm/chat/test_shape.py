"""Conversations as agents send them, in the chat templates of the families: nothing is refused, nothing is lost.

The oracle is each template's own rendering, by transformers, of what it gets.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.model_format import ModelFormat
from apps.llm.chat.reader import ReasoningMarks
from apps.llm.chat.shape import Shape
from apps.llm.chat.tools import Tool, ToolUse
from tests.llm.chat.templates import RELEASED
from tests.llm.chat.written import THINK, pieces_of, understood

DAYS = {"type": "object", "properties": {"days": {"type": "integer", "description": "How many."}}}
ASK = Tool("ask", "tools[0].function", "Asks.", DAYS)
WITHOUT_TOOLS = ("Gemma 2", "Gemma 3")
DROPS_TEXT = ("Mistral Nemo", "Mistral Small")
"""Templates that leave out a text beside calls, and refuse it in a message of its own. So does mistral-common."""


def renderer(template: str) -> Callable[..., str]:
    def render(messages: Any, tools: Any, fields: Any) -> str:
        try:
            variables = {"bos_token": "<s>", "eos_token": "</s>", **fields}
            options: dict[str, Any] = {"chat_template": template, "add_generation_prompt": True}
            return render_jinja_template([list(messages)], tools, **options, **variables)[0][0]
        except (TemplateError, TypeError) as error:
            raise RequestError("messages", str(error)) from error

    return render


@cache
def model(name: str) -> ModelFormat:
    return ModelFormat.of(RELEASED[name]).on(lambda marks: {}, renderer(RELEASED[name]))


def asked(conversation: Conversation, name: str, **fields: Any) -> ChatRequest:
    return ChatRequest(conversation.messages, ToolUse([ASK] if model(name).takes_tools else ()), fields)


def prompt(name: str, conversation: Conversation, **fields: Any) -> str:
    request = asked(conversation, name, **fields)
    model(name).check(request)
    return model(name).rendered(request, renderer(RELEASED[name]))


def call(number: int, **arguments: Any) -> PastCall:
    return PastCall(f"call_{number}", "ask", json.dumps({"days": number, **arguments}))


FOUND = {
    "Llama 3": Shape(parallel=False, text_beside=False),
    "Mistral Nemo": Shape(repeats=False, after_result="answered", quoted=True),
    "Mistral Small": Shape(repeats=False, after_result="answered", quoted=True),
    "Gemma 2": Shape(tools="nowhere", system=False, repeats=False, calls=False),
    "Gemma 3": Shape(tools="nowhere", repeats=False, calls=False),
    "Gemma 4": Shape(inside=True),
    "Gemma 4, tools' messages": Shape(),
    "Phi-4-mini": Shape(tools="system", calls=False),
    "Phi-4-mini, functools": Shape(as_text=True, text_beside=False),
    "DeepSeek V3.1": Shape(as_text=True),
    "DeepSeek R1": Shape(as_text=True, text_beside=False),
    "Qwen3": Shape(),
}


@pytest.mark.parametrize("name", RELEASED)
def test_the_shape_is_found_by_rendering(name: str) -> None:
    assert model(name).shape == FOUND[name]
    assert model(name).takes_tools == (name not in WITHOUT_TOOLS)


# -- any conversation -------------------------------------------------------------------------------------------------

SAYS = st.sampled_from(["user", "user", "system", "assistant"])
TURNS = st.lists(SAYS | st.tuples(st.integers(1, 3), st.booleans(), st.permutations(range(3)), st.lists(SAYS)))


class Talk:
    """A conversation, with words that are nowhere else."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.said: list[tuple[str, str]] = []  # role and words, in the order that a template should have
        self._words = (f"word{i}w" for i in range(1000))

    def says(self, role: str) -> None:
        words = next(self._words)
        self.said.append((role, words))
        if role == "assistant":
            self.conversation.answer(words)
        else:
            self.conversation.say(role, words)

    def calls(self, count: int, with_text: bool, order: Sequence[int], between: Sequence[str]) -> None:
        """Calls, other messages, and then the calls' results in any order."""
        for i in reversed(range(len(self.said))):  # the texts of one turn are one with its calls
            if self.said[i][0] != "assistant":
                break
            self.said[i] = ("beside", self.said[i][1])
        text = next(self._words) if with_text else ""
        self.said += [("beside", text)] if with_text else []
        values = [next(self._words) for _ in range(count)]
        self.said += [("call", value) for value in values]
        place, turn = len(self.said), values[0]
        past = [PastCall(f"{turn}-{i}", "ask", json.dumps({"at": value})) for i, value in enumerate(values)]
        self.conversation.answer(text, None, past)
        for role in between:
            self.says(role)
        for i in (i for i in order if i < count):
            words = next(self._words)
            self.conversation.result(f"{turn}-{i}", words, "f")
            self.said.insert(place, ("result", words))
            place += 1


def talks(turns: Sequence[Any], tools: bool) -> Talk:
    talk = Talk()
    talk.says("user")
    for turn in turns:
        if isinstance(turn, str):
            talk.says(turn)
        elif tools:
            talk.calls(*turn)
    talk.says("user")
    return talk


def lost(name: str, talk: Talk) -> Iterator[str]:
    """Words that a prompt does not have exactly once, or not in their order.

    Templates may move system messages, texts beside calls, and results where calls come one by one.
    """
    shown = prompt(name, talk.conversation)
    kept = [(role, words) for role, words in talk.said if not (role == "beside" and name in DROPS_TEXT)]
    yield from (words for _, words in kept if shown.count(words) != 1)
    moved = ("system", "beside") if model(name).shape.parallel else ("system", "beside", "result")
    ordered = [words for role, words in kept if role not in moved]
    places = [shown.find(words) for words in ordered if words in shown]
    yield from ["order"] * (places != sorted(places))


@settings(deadline=None, max_examples=40)
@given(turns=TURNS, name=st.sampled_from(list(RELEASED)))
def test_any_conversation_is_shown(turns: list[Any], name: str) -> None:
    assert not list(lost(name, talks(turns, name not in WITHOUT_TOOLS)))


# -- families ---------------------------------------------------------------------------------------------------------


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
