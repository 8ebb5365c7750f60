"""Structured output: which tokens keep an answer within a JSON schema, by llguidance."""

import json
from functools import cached_property

import llguidance
import llguidance.numpy
import numpy as np

from apps.llm.api import RequestError
from apps.llm.engine.text.tokenizer import ModelTokenizer

WHITESPACE = r"\n?[ ]{0,16}"  # between JSON's parts: a small model may otherwise write line breaks for ever


class Grammars:
    """Makes matchers for one tokenizer."""

    def __init__(self, tokenizer: ModelTokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]):
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, eos_token_ids

    @cached_property
    def _ll_tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            self._tokenizer.fast.to_str(), n_vocab=self._vocab_size, eos_token=list(self._eos) or None
        )

    def matcher(self, schema: str | dict) -> "Matcher":
        """A matcher of a JSON schema; an empty one matches any JSON object.

        Raises:
            RequestError: the schema is not valid, or asks for what llguidance does not support.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise RequestError("response_format", f"the JSON schema is not valid JSON: {error}") from error
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            schema or {"type": "object"}, defaults={"whitespace_pattern": WHITESPACE}
        )
        problem = llguidance.LLMatcher.validate_grammar(grammar, self._ll_tokenizer)
        if problem:
            raise RequestError("response_format", f"the JSON schema cannot be followed: {problem}")
        return Matcher(llguidance.LLMatcher(self._ll_tokenizer, grammar), self._vocab_size)

    def warm_up(self) -> None:
        self.matcher({})


class Matcher:
    """Follows one answer through its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int):
        self._matcher = matcher
        self._bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)

    def allowed(self) -> np.ndarray:
        """Bits of the tokens that may come next, `[ceil(vocab / 32)]` uint32."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        return self._bits[0].view(np.uint32)

    def consume(self, token: int) -> bool:
        """Take note of the token; False when the answer is complete."""
        self._matcher.consume_token(token)
        return not self._matcher.is_stopped()
