"""gpt-oss's format: calls and schemas enforced after free reasoning, whatever the model writes; its ends, its prompts.

No engine: tokens are drawn at random among those that the grammar allows.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.formats.harmony import CALL, CHANNEL, END, RETURN
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.chat.tools import Tool, ToolUse
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.text import SamplingParams
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from tests.llm.chat.written import Understood, pieces_of, understood
from tests.llm.engine import tiny_models
from tests.llm.text import chat_models

SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["days"],
    "additionalProperties": False,
}
ASK = Tool("ask", "tools[0].function", "Asks.", SCHEMA)
EOS = 1


class Model:
    """A tokenizer with its chat template and grammars."""

    def __init__(self, tokenizer: ModelTokenizer):
        self.tokenizer, self.grammars = tokenizer, Grammars(tokenizer.fast, tiny_models.VOCAB, (EOS,))
        found = ModelFormat.of(tokenizer.chat_template)
        self.format = found.with_tokens(self.grammars.special_tokens())

    def turn(self, tools: Sequence[Tool] = (), mode: str = "auto") -> Turn:
        return self.format.turn(ChatRequest([{"role": "user", "content": "hi"}], ToolUse(tools, mode)), "")

    def written(self, turn: Turn, seed: int, **params: object) -> Understood:
        """What the reader makes of a random answer. Reasoning may end after each of its tokens, and often does."""
        grammar = turn.constrained(SamplingParams(**params)).grammar
        assert grammar is not None
        matcher, dice = self.grammars.matchers(grammar).result()[0], random.Random(seed)
        ids: list[int] = []
        while len(ids) < 2000:
            words = matcher.allowed()
            tokens = [t for t in range(tiny_models.VOCAB) if words[t // 32] >> t % 32 & 1]
            end = self.format.tokens[END]
            ids.append(end if end in tokens and dice.random() < 0.2 else dice.choice(tokens))
            if not matcher.consume(ids[-1]):
                break
        text = self.tokenizer.decode(ids, special=True).removesuffix("</s>")
        return understood(pieces_of(turn.reader(), list(text)), framed=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("harmony")
    chat_models.save_tokenizer(folder, "harmony")
    return Model(ModelTokenizer.of_folder(str(folder)))


def test_a_call_is_forced_after_any_reasoning(model: Model) -> None:
    thought = said = 0
    for seed in range(30):
        found = model.written(model.turn([ASK], "required"), seed)
        ((name, arguments),) = found.loaded()
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
    assert turn.reader() is not None and tokens[CHANNEL] in params.shown_tokens
    assert params.stop_token_ids == [7, tokens[CALL], tokens[RETURN]]
    assert not turn.constrained(SamplingParams(ignore_eos=True)).stop_token_ids


def test_the_prompt_has_effort_tools_calls_and_results(model: Model) -> None:
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("I look.", "Hm.", [PastCall("a", "ask", '{"days": 2}'), PastCall("b", "ask", "{}")])
    conversation.result("b", "no", "f")
    conversation.result("a", "yes", "f")
    request = ChatRequest(conversation.messages, ToolUse([ASK]), {"reasoning_effort": "xhigh"})
    call, result = "<|start|>assistant to=functions.ask", "<|start|>functions.ask to=assistant<|channel|>commentary"
    assert model.format.rendered(request, model.tokenizer.render) == (
        "<|start|>system<|message|>Reasoning: high<|end|>"
        f"<|start|>developer<|message|>// Asks.\ntype ask = {json.dumps(SCHEMA)};<|end|>"
        "<|start|>user<|message|>Rain?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        f'{call}<|channel|>commentary json<|message|>{{"days": 2}}<|call|>{result}<|message|>"yes"<|end|>'
        f'{call}<|channel|>commentary json<|message|>{{}}<|call|>{result}<|message|>"no"<|end|><|start|>assistant'
    )
