"""Answers drawn at random among the tokens that a grammar allows, of formats in which all of an answer is within marks.

No engine.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from apps.llm.chat.conversation import ChatRequest
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

    def __init__(self, template: str, folder: Path):
        self.template = template
        chat_models.save_tokenizer(folder, template)
        tokenizer = ModelTokenizer.of_folder(str(folder))
        self.tokenizer, self.grammars = tokenizer, Grammars(tokenizer.fast, tiny_models.VOCAB, (EOS,))
        found = ModelFormat.of(tokenizer.chat_template)
        self.format = found.with_tokens(self.grammars.special_tokens())

    def turn(self, tools: Sequence[Tool] = (), mode: str = "auto") -> Turn:
        return self.format.turn(ChatRequest([{"role": "user", "content": "hi"}], ToolUse(tools, mode)), "")

    def written(self, turn: Turn, seed: int, closes: str = "", **params: object) -> Understood:
        """What the reader makes of a random answer. All that may end after each of its tokens often does.

        Args:
            closes: what ends a text that would otherwise go on: written now and then, wherever it may be.
        """
        grammar = turn.constrained(SamplingParams(**params)).grammar
        assert grammar is not None
        matcher, dice = self.grammars.matchers(grammar).result()[0], random.Random(seed)
        closing = self.tokenizer.encode_suffix(closes) if closes else []
        ids: list[int] = []
        while len(ids) < 2000:
            if closing and dice.random() < 0.05 and matcher.follows(closing) == len(closing):
                for token in closing[:-1]:
                    matcher.consume(token)
                ids += closing
                if not matcher.consume(closing[-1]):
                    break
                continue
            words = matcher.allowed()
            tokens = [t for t in range(tiny_models.VOCAB) if words[t // 32] >> t % 32 & 1]
            end = self.format.tokens.get(self.format.calls.part_end)
            likely = [token for token in (EOS, end) if token in tokens and dice.random() < 0.2]
            ids.append(likely[0] if likely else dice.choice(tokens))
            if not matcher.consume(ids[-1]):
                break
        text = self.tokenizer.decode(ids, special=True).removesuffix("</s>")
        return understood(pieces_of(turn.reader(), list(text)), framed=True)
