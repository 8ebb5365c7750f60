"""Formats with all of an answer within marks: calls and schemas enforced after free reasoning, whatever is written.

Tokens are drawn at random among those that the grammar allows.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.formats import atem, harmony
from apps.llm.chat.tools import Tool, ToolUse
from apps.llm.text import SamplingParams
from tests.llm.text.random_answers import ASK, SCHEMA, Model

ENDS = {"harmony": [harmony.CALL, harmony.RETURN], "atem": [atem.EOT]}


@pytest.fixture(scope="module", params=ENDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("framed"))


def test_a_call_is_forced_after_any_reasoning(model: Model) -> None:
    thought = said = 0
    for seed in range(30):
        found = model.written(model.turn([ASK], "required"), seed)
        assert found.calls
        for name, arguments in found.loaded():
            assert name == "ask"
            Draft202012Validator(SCHEMA).validate(arguments)
        thought, said = thought + bool(found.reasoning), said + bool(found.text)
    assert thought and said  # text before a call is its announcement


def test_a_strict_tool_is_called_rightly_or_not_at_all(model: Model) -> None:
    called = answered = 0
    for seed in range(30):
        found = model.written(model.turn([replace(ASK, strict=True)]), seed)
        for _, arguments in found.loaded():
            Draft202012Validator(SCHEMA).validate(arguments)
        called, answered = called + bool(found.calls), answered + (not found.calls)
    assert called and answered


@pytest.mark.parametrize("tools", [(), (replace(ASK, strict=True),)])
def test_text_follows_a_schema_as_a_whole(model: Model, tools: Sequence[Tool]) -> None:
    thought = 0
    content = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    for seed in range(20):
        found = model.written(model.turn(tools), seed, json_schema=content)
        if not found.calls:
            Draft202012Validator(content).validate(json.loads(found.text))
            thought += bool(found.reasoning)
    assert thought


def test_every_answer_is_read_and_ends_with_the_formats_marks(model: Model) -> None:
    """Without tools too; and where the model's config names neither mark as an end."""
    turn, tokens = model.turn(), model.format.tokens
    params = turn.constrained(SamplingParams(stop_token_ids=[7]))
    calls = model.format.calls
    assert turn.reader() is not None and calls is not None and tokens[calls.mark] in params.shown_tokens
    assert params.stop_token_ids == [7, *(tokens[end] for end in ENDS[model.template])]
    assert not turn.constrained(SamplingParams(ignore_eos=True)).stop_token_ids


def talk(effort: str) -> ChatRequest:
    """A conversation with reasoning, text beside two calls, and their results."""
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("I look.", "Hm.", [PastCall("a", "ask", '{"days": 2}'), PastCall("b", "ask", "{}")])
    conversation.result("b", "no", "f")
    conversation.result("a", "yes", "f")
    return ChatRequest(conversation.messages, ToolUse([ASK]), {"reasoning_effort": effort})


HARMONY_CALL = "<|start|>assistant to=functions.ask<|channel|>commentary json<|message|>"
HARMONY_RESULT = "<|start|>functions.ask to=assistant<|channel|>commentary<|message|>"
ATEM_CALL = '<|start|>assistant to=ask<|message|><atem:function_calls>\n<atem:invoke name="ask">\n'
ATEM_CALLED = "</atem:invoke>\n</atem:function_calls>"
ATEM_RESULT = '<|start|>tool ask<|message|><tool_output name="ask">\n'
PROMPTS = {
    "harmony": (
        "<|start|>system<|message|>Reasoning: high<|end|>"
        f"<|start|>developer<|message|>// Asks.\ntype ask = {json.dumps(SCHEMA)};<|end|>"
        "<|start|>user<|message|>Rain?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        f'{HARMONY_CALL}{{"days": 2}}<|call|>{HARMONY_RESULT}"yes"<|end|>'
        f'{HARMONY_CALL}{{}}<|call|>{HARMONY_RESULT}"no"<|end|><|start|>assistant'
    ),
    "atem": (
        "<s><|start|>system<|message|>Help.\n\nReasoning strength: xhigh.\n\nTools:\n"
        f"{json.dumps({'name': 'ask', 'description': 'Asks.', 'parameters': SCHEMA})}\n\n"
        '# Valid recipients: "self", "ask.*", "user".<|eot|><|start|>user<|message|>Rain?<|eot|>'
        "<|start|>assistant to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>I look.<|eom|>"
        f'{ATEM_CALL}<atem:parameter name="days">2</atem:parameter>\n{ATEM_CALLED}<|eom|>'
        f"{ATEM_CALL}{ATEM_CALLED}<|eot|>"
        f"{ATEM_RESULT}no\n</tool_output><|eom|>{ATEM_RESULT}yes\n</tool_output><|eot|><|start|>assistant"
    ),
}


def test_the_prompt_has_effort_tools_calls_and_results(model: Model) -> None:
    assert model.format.rendered(talk("xhigh"), model.tokenizer.render) == PROMPTS[model.template]
