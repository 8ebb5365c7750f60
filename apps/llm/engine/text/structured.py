"""Structured output: masks of the tokens that keep an answer within a JSON schema or a grammar, by llguidance."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np

from apps.llm.api import Grammar, RequestError
from apps.llm.chat.grammar import JSON_OPTIONS, loaded_schema
from apps.llm.engine.text.tokenizer import ModelTokenizer


class Grammars:
    """Makes matchers for one tokenizer."""

    def __init__(self, tokenizer: ModelTokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]):
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, eos_token_ids

    @cached_property
    def _ll_tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            self._tokenizer.fast.to_str(), n_vocab=self._vocab_size, eos_token=list(self._eos) or None
        )

    def tokens(self, marks: Iterable[str]) -> dict[str, int]:
        """The marks that are a single special token, with their ids."""
        ids = {mark: self._tokenizer.fast.token_to_id(mark) for mark in marks}
        return {mark: id for mark, id in ids.items() if id is not None and self._ll_tokenizer.is_special_token(id)}

    def matcher(self, held: str | Mapping[str, Any] | Grammar) -> "Matcher":
        """A matcher for a JSON schema (an empty one matches any JSON object) or a grammar.

        Raises:
            RequestError: the schema is not valid, or uses a feature that llguidance does not support.
        """
        if isinstance(held, Grammar):
            grammar = held.lark
            if problem := self._problem(grammar):
                for field, schema in held.schemas:
                    if in_it := self._problem(_of_schema(schema)):
                        raise RequestError(field, f"{field}: the JSON schema cannot be followed: {in_it}")
                raise RequestError("tools", f"tools: they cannot be followed together: {problem}")
        else:
            grammar = _of_schema(loaded_schema(held))
            if problem := self._problem(grammar):
                raise RequestError("response_format", f"the JSON schema cannot be followed: {problem}")
        return Matcher(llguidance.LLMatcher(self._ll_tokenizer, grammar), self._vocab_size)

    def _problem(self, grammar: str) -> str:
        """What is wrong with a grammar; empty if nothing is."""
        return llguidance.LLMatcher.validate_grammar(grammar, self._ll_tokenizer)

    def warm_up(self) -> None:
        self.matcher({})


class Matcher:
    """Follows one answer through its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int):
        self._matcher, self._vocab_size = matcher, vocab_size
        self._bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)

    def copy(self) -> "Matcher":
        """A copy in the same state; cheaper than compiling the grammar again."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size)

    @property
    def failure(self) -> str:
        """Why matching failed (a grammar too complex for llguidance's limits, say); empty if it did not."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    def follows(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` that the grammar allows next."""
        return self._matcher.validate_tokens(list(tokens))

    def allowed(self) -> np.ndarray:
        """Mask of the tokens that may come next, `[ceil(vocab / 32)]` uint32."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        return self._bits[0].view(np.uint32)

    def allowed_along(self, draft: Sequence[int]) -> list[np.ndarray | None]:
        """`allowed`, and what it would be after each token of a draft. The draft must follow the grammar.

        None after a token that ends the answer: what is sampled there does not count.
        """
        masks: list[np.ndarray | None] = []
        for count in range(1 + len(draft)):
            if count:
                self._matcher.consume_token(draft[count - 1])
            if self._matcher.is_stopped():
                masks += [None] * (1 + len(draft) - count)
                break
            masks.append(self.allowed().copy())
        self._matcher.rollback(count)
        return masks

    def consume(self, token: int) -> bool:
        """Advance by a token. False when the answer is complete."""
        self._matcher.consume_token(token)
        return not self._matcher.is_stopped()


def _of_schema(schema: Mapping[str, Any]) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema({**schema, "x-guidance": JSON_OPTIONS})
