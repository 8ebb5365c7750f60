"""Structured output: masks of the tokens that keep an answer within a JSON schema or a grammar, by llguidance.

Grammars whose schemas are surely cheap are compiled and followed in this process, all others in processes that can be
ended: see `schema_cost` and `pool`.
"""

from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import llguidance
import llguidance.numpy
import numpy as np
from tokenizers import Tokenizer

from apps.llm.api import Grammar
from apps.llm.engine.grammar.pool import GrammarPool, Task
from apps.llm.engine.grammar.processes import TokenizerFile
from apps.llm.engine.grammar.remote_matcher import RemoteMatcher, one_line
from apps.llm.engine.grammar.schema_cost import Cheapness
from apps.llm.schemas.enforced import enforceable
from apps.llm.schemas.written import check_schemas, schema_grammar, schema_text, whole_schema

LIMITS = {"max_lexer_states": 50_000, "verbose_errors": False}
"""Of llguidance's parser, beside its own defaults. A state has 1 to 2 kB."""
KEPT = 64
"""Compiled grammars that are kept for the next request with one of them."""


class Grammars:
    """Makes matchers for one tokenizer.

    Args:
        tokenizer: may have more tokens than the model: the masks are of the model's.
        vocab_size: of the model.
        eos_token_ids: the tokens that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]):
        self._tokenizer, self._vocab_size, self.eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._tokens = max(vocab_size, 1 + max(tokenizer.get_vocab().values(), default=0))
        self._pool = GrammarPool(TokenizerFile(tokenizer.to_str, vocab_size, self._tokens, eos_token_ids))
        self._threads = ThreadPoolExecutor(2, "podslice-schemas")
        self._kept: dict[str, Matcher] = {}  # the least recently used first
        self._limits = llguidance.LLParserLimits(**LIMITS)

    @cached_property
    def _ll_tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            self._tokenizer.to_str(), n_vocab=self._tokens, eos_token=list(self.eos_token_ids) or None
        )

    def special_tokens(self) -> dict[str, int]:
        """The model's special tokens by their text. A grammar can name them."""
        special = self._ll_tokenizer.is_special_token
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: id for id, token in added.items() if id < self._vocab_size and special(id)}

    def matchers(
        self, grammar: Grammar, count: int = 1, caller: Hashable = None
    ) -> "Future[Sequence[Matcher]] | Future[Sequence[RemoteMatcher]]":
        """Matchers for answers that follow a grammar.

        Returns at once; compiling takes milliseconds to seconds. Cancel the future if its result is not needed.

        Args:
            caller: whose request it is; each has one complex grammar compiled at a time.

        Raises:
            RequestError: the schema is too large. Also from the future: it is not valid, uses a feature that
                llguidance does not support, or is too complex.
            QueueFull: from the future: too many complex grammars are compiled or followed.
        """
        check_schemas(grammar.schemas)
        if count == 1 and (kept := self._known(grammar.lark)):
            ready: Future[Sequence[Matcher]] = Future()
            ready.set_result([kept.copy()])
            return ready
        cheap = Cheapness()
        fields, own = [field for field, _ in grammar.schemas], grammar.written
        rewritten = [enforceable(schema) for _, schema in grammar.schemas]
        suspects = (field for field, schema in zip(fields, rewritten) if not cheap.of(schema))
        suspect = next(suspects, own[0] if own else None)
        parts = [whole_schema(schema_text(schema, whole)) for (_, schema), whole in zip(grammar.schemas, rewritten)]
        task = Task(grammar.lark, parts, [*fields, grammar.field], suspect or grammar.field, LIMITS)
        if suspect is None:
            return self._threads.submit(self._compiled, task, count)
        return self._pool.matchers(task, caller, count)

    def _compiled(self, task: Task, count: int) -> "Sequence[Matcher]":
        """Matchers of a cheap grammar."""
        matcher = self._known(task.grammar) or self._matcher(task.grammar)
        if problem := matcher.failure:
            parts = ((i, self._matcher(part).failure) for i, part in enumerate(task.parts))
            part, problem = next(((i, wrong) for i, wrong in parts if wrong), (None, problem))
            raise task.refused(part, problem)
        self._kept[task.grammar] = matcher
        for old in list(self._kept)[:-KEPT]:
            self._kept.pop(old, None)
        return [matcher.copy() for _ in range(count)]

    def _known(self, grammar: str) -> "Matcher | None":
        matcher = self._kept.pop(grammar, None)
        if matcher is not None:
            self._kept[grammar] = matcher
        return matcher

    def _matcher(self, grammar: str) -> "Matcher":
        # Without log_level=0, it would write warnings about a client's schema to standard error.
        matcher = llguidance.LLMatcher(self._ll_tokenizer, grammar, log_level=0, limits=self._limits)
        return Matcher(matcher, self._vocab_size, self._tokens)

    def warm_up(self) -> None:
        self.matchers(schema_grammar({})).result()

    def close(self) -> None:
        """End what compiles, and all complex grammars."""
        self._threads.shutdown(wait=False)
        self._pool.close()


class Matcher:
    """Follows one answer through its grammar.

    Args:
        tokens: of the tokenizer, of which the model has the first `vocab_size`; None: all.
    """

    ended = False  # `consume` tells

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int, tokens: int | None = None):
        self._matcher, self._vocab_size, self._tokens = matcher, vocab_size, tokens
        self._bits = llguidance.numpy.allocate_token_bitmask(1, tokens or vocab_size)

    def copy(self) -> "Matcher":
        """A copy in the same state; cheaper than compiling the grammar again."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size, self._tokens)

    @property
    def failure(self) -> str:
        """Why matching failed (a grammar too complex for llguidance's limits, say); empty if it did not."""
        return one_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def follows(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` that the grammar allows next."""
        return self._matcher.validate_tokens(list(tokens))

    def allowed(self) -> np.ndarray:
        """Mask of the tokens that may come next, `[ceil(vocab / 32)]` uint32."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        return self._bits[0].view(np.uint32)[: -(-self._vocab_size // 32)]

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

    def replay(self, tokens: Sequence[int]) -> None:
        """Advance by an answer's tokens so far. If they do not follow the grammar, `failure` says so."""
        for token in tokens:
            self.consume(token)

    def consume(self, token: int) -> bool:
        """Advance by a token. False when the answer is complete."""
        self._matcher.consume_token(token)
        return not self._matcher.is_stopped()


AnyMatcher = Matcher | RemoteMatcher
