"""One answer in progress: what its tokens may be, and which of them ends it."""

import logging
from collections.abc import Sequence as Ids
from functools import cached_property

import numpy as np

from apps.llm.api import FinishReason, RequestError, TokenLogprobs, TokenOutput
from apps.llm.engine.executor_protocol import Tokens
from apps.llm.engine.grammar.matchers import AnyMatcher
from apps.llm.engine.grammar.token_masks import AllowedTokens, both, without
from apps.llm.engine.schedule.sequence import Sequence

log = logging.getLogger("podslice")


class Answer:
    """What a sampled sequence must follow, beside the scheduler's `Sequence`.

    Args:
        eos_token_ids: the model's.
        matcher: at the beginning of the answer; None: it follows no grammar.

    Raises:
        RequestError: the answer so far does not follow the grammar.
    """

    def __init__(
        self, seq: Sequence, vocab_size: int, eos_token_ids: tuple[int, ...], matcher: AnyMatcher | None = None
    ):
        request, sampling = seq.request, seq.request.sampling
        assert sampling is not None  # something is sampled
        self.sampling = sampling
        self._failure: BaseException | None = None  # of its grammar; the answer ends with it
        self._seq, self.matcher = seq, matcher
        self._stops = frozenset(sampling.stop_token_ids)
        self._eos: frozenset[int] = frozenset() if sampling.ignore_eos else frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._dead_ends = set[int]()  # numbers of tokens for which what it must follow leaves none
        self._at_dead_end = False
        self.words = AllowedTokens.of(sampling, vocab_size)
        self.bias = sampling.logit_bias
        self.penalized = sampling.penalized
        self.free = matcher is None and self.words is None and not sampling.min_tokens and not self.bias
        """Whether every token may be next at every place, by the model's own logits."""
        self.settings = {  # as `step.SETTINGS` has them
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "presence": sampling.presence_penalty,
            "frequency": sampling.frequency_penalty,
            "repetition": sampling.repetition_penalty,
            "top_k": sampling.top_k,
            "logprobs": sampling.logprobs is not None,
        }
        if matcher is not None and request.answer_ids:
            matcher.replay(request.answer_ids)
            if matcher.failure:
                raise RequestError(self._held_by, f"{self._held_by}: the answer so far is not within it")

    def plausible(self, draft: list[int]) -> list[int]:
        """The draft, cut before its first stop token and before it leaves the grammar."""
        end = next((i for i, token in enumerate(draft) if token in self._eos or token in self._stops), len(draft))
        if self.matcher is None:
            return draft[:end]
        try:
            return draft[: self.matcher.follows(draft[:end])]
        except BaseException as error:
            self._failure = error
            return []

    def allowed(self, length: int, draft: Ids[int] = ()) -> list[np.ndarray | None]:
        """Token masks for sampling token number `length`, and after each token of the draft, which must be `plausible`.
        None allows every token."""
        masks: list[np.ndarray | None] = [None] * (1 + len(draft))
        if self.matcher is not None:
            try:
                masks = self.matcher.allowed_along(draft)
            except BaseException as error:
                self._failure = error
        if self.words is not None:
            known = self._seq.tokens[max(self._seq.prompt_len, length - self.words.memory) : length]
            masks = self.words.within(masks, known, draft)
        for i, mask in enumerate(masks):
            if length + i - self._seq.prompt_len < self.sampling.min_tokens:
                masks[i] = both(mask, self._without_ends)
        if self._dead_ends:  # of a draft that was not taken
            self._dead_ends.difference_update(range(length, length + len(masks)))
        self._dead_ends |= {length + i for i, mask in enumerate(masks) if mask is not None and not mask.any()}
        return masks

    @cached_property
    def _without_ends(self) -> np.ndarray:
        return without(self._vocab_size, self._eos | self._stops)

    def take(self, token: int, step: Tokens, i: int) -> TokenOutput:
        """The output for a sampled token, the `i`th of its step. Raises what its grammar has failed with."""
        if self._failure is not None:
            raise self._failure
        seq = self._seq
        length = len(seq.tokens) - 1 if seq.unread else len(seq.tokens)
        reason: FinishReason | None = None
        if length - 1 in self._dead_ends:
            self._at_dead_end = True
            return self.verdict()
        if self.matcher is not None:
            goes_on = self.matcher.consume(token)
            if self.matcher.failure:
                return self.verdict()
            reason = None if goes_on else "stop"
        if token in self._eos or token in self._stops:
            reason = "stop"
        elif reason is None and length >= seq.limit:
            reason = "length"
        logprobs = (self._logprobs(step, i),) if self.sampling.logprobs is not None else ()
        return TokenOutput(
            request=seq.request.id,
            token_ids=(token,),
            logprobs=logprobs,
            finish_reason=reason,
            cached_tokens=seq.cached_tokens,
            entered_ns=seq.entered_ns,
        )

    def verdict(self) -> TokenOutput:
        """The last output of an answer that its grammar ends: it is complete, or cannot be followed further."""
        failure = self.matcher.failure if self.matcher is not None else ""
        why = "none of the model's tokens can be next" if self._at_dead_end and not failure else failure
        if not why:
            return last_output(self._seq, "stop")
        field = self._held_by
        error = f"{field}: the answer cannot be continued within it: {why}"
        log.warning("an answer failed: %s", error)
        return last_output(self._seq, "error", error, at_fault=field)

    @property
    def _held_by(self) -> str:
        """The field of the request that says what its tokens may be."""
        grammar = self._seq.request.grammar
        if grammar is not None:
            return grammar.schemas[-1][0] if grammar.schemas else grammar.field
        return "bad_words" if self.sampling.allowed_token_ids is None else "allowed_token_ids"

    def _logprobs(self, step: Tokens, i: int) -> TokenLogprobs:
        top = slice(self.sampling.logprobs)
        ids, logprobs = step.top_ids[i, top].tolist(), step.top_logprobs[i, top].tolist()
        return TokenLogprobs(float(step.logprob[i]), tuple(ids), tuple(logprobs))


def last_output(
    seq: Sequence, reason: FinishReason, error: str | None = None, of_answer: bool = False, at_fault: str | None = None
) -> TokenOutput:
    """The output that ends a sequence without another token."""
    return TokenOutput(
        request=seq.request.id,
        finish_reason=reason,
        error=error,
        of_answer=of_answer,
        at_fault=at_fault,
        cached_tokens=seq.cached_tokens,
        entered_ns=seq.entered_ns,
    )


def failed(seq: Sequence, error: BaseException) -> TokenOutput:
    """The last output of a sequence whose own grammar failed, by a library's panic or any other error."""
    log.error("an answer failed", exc_info=error)
    return last_output(seq, "error", f"the answer failed: {type(error).__name__}: {error}", of_answer=True)


def unsound(seq: Sequence) -> TokenOutput:
    """The last output of a sequence whose numbers are not finite."""
    why = (
        "the numbers that the model computed are not finite: its weights, or the adapter's, are too large for their "
        "type, or damaged"
    )
    return last_output(seq, "error", why, of_answer=True)
