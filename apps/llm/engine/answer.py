"""One answer in progress: turns tokens into text and checks stop conditions."""

import logging
from collections.abc import Sequence as Ids
from functools import cached_property

import numpy as np

from apps.llm.api import FinishReason, Grammar, Output, TokenLogprob
from apps.llm.engine.executor_protocol import Tokens
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.scheduler import Sequence
from apps.llm.engine.text.detokenizer import Detokenizer
from apps.llm.engine.text.structured import AnyMatcher
from apps.llm.engine.text.token_masks import AllowedTokens, both, without
from apps.llm.engine.text.tokenizer import ModelTokenizer

log = logging.getLogger("podslice")


class Answer:
    """The text side of one sequence, beside the scheduler's `Sequence`."""

    def __init__(self, seq: Sequence, tokenizer: ModelTokenizer, arch: Architecture, matcher: AnyMatcher | None):
        params = seq.generation.params
        assert params is not None  # something is sampled
        self.params = params
        self.entered = False  # has left the queue at least once
        self._failure: BaseException | None = None  # of its text or grammar; the answer ends with it
        self._seq, self._tokenizer, self.matcher = seq, tokenizer, matcher
        self._reader = params.reader() if params.reader is not None and params.stop else None
        stop = () if self._reader is not None else params.stop
        self._text = Detokenizer(
            tokenizer.fast, seq.generation.prompt_ids, stop, params.include_stop_text, params.shown_tokens
        )
        self._stops = frozenset(params.stop_token_ids)
        self._eos: frozenset[int] = frozenset() if params.ignore_eos else frozenset(arch.eos_token_ids)
        self._vocab_size = arch.vocab_size
        self._dead_ends = set[int]()  # numbers of tokens for which what it must follow leaves none
        self._at_dead_end = False
        self.words = AllowedTokens.of(params, tokenizer, arch.vocab_size)
        self.bias = params.logit_bias
        self.penalized = bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)
        self.rows = {  # sampling settings for `HostStep.add`
            "temperature": params.temperature if params.top_p else 0.0,  # a share of nothing: the likeliest token
            "top_p": params.top_p or 1.0,
            "min_p": params.min_p,
            "presence": params.presence_penalty,
            "frequency": params.frequency_penalty,
            "repetition": params.repetition_penalty,
            "top_k": max(params.top_k, 0),
            "logprobs": params.logprobs is not None,
        }

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
            if length + i - self._seq.prompt_len < self.params.min_tokens:
                masks[i] = both(mask, self._without_ends)
        if self._dead_ends:  # of a draft that was not taken
            self._dead_ends.difference_update(range(length, length + len(masks)))
        self._dead_ends |= {length + i for i, mask in enumerate(masks) if mask is not None and not mask.any()}
        return masks

    @cached_property
    def _without_ends(self) -> np.ndarray:
        return without(self._vocab_size, self._eos | self._stops)

    def take(self, token: int, step: Tokens, i: int) -> Output:
        """The output for a sampled token, the `i`th of its step. Raises what its text or grammar has failed with."""
        if self._failure is not None:
            raise self._failure
        seq, params = self._seq, self.params
        length = len(seq.tokens) - 1 if seq.unread else len(seq.tokens)
        reason: FinishReason | None = None
        stopped_by: str | int | None = None
        text, offset = "", self._text.length
        if length - 1 in self._dead_ends:
            self._at_dead_end = True
            return self.verdict()
        if self.matcher is not None:
            goes_on = self.matcher.consume(token)
            if self.matcher.failure:
                return self.verdict()
            reason = None if goes_on else "stop"
        if token in self._eos:
            reason = "stop"
        elif token in self._stops:
            reason, stopped_by = "stop", token
        if token not in self._eos and (token not in self._stops or params.include_stop_text):
            text, stop = self._text.feed(token)
            if self._reader is not None:
                self._reader.feed(text)
                stop = self._reader.stopped
            if stop is not None:
                reason, stopped_by = "stop", stop
        if reason is None and length >= seq.limit:
            reason = "length"
        if reason is not None and not isinstance(stopped_by, str):
            text += self._text.flush()
        logprobs = (self._logprob(token, step, i, offset),) if params.logprobs is not None else ()
        return Output(seq.index, text, (token,), logprobs, reason, stopped_by)

    def verdict(self) -> Output:
        """The last output of an answer that its grammar ends: it is complete, or cannot be followed further."""
        failure = self.matcher.failure if self.matcher is not None else ""
        why = "none of the model's tokens can be next" if self._at_dead_end and not failure else failure
        if not why:
            return Output(self._seq.index, self._text.flush(), (), finish_reason="stop")
        field = self._held_by
        error = f"{field}: the answer cannot be continued within it: {why}"
        log.warning("an answer failed: %s", error)
        return Output(self._seq.index, "", (), finish_reason="error", error=error, at_fault=field)

    @property
    def _held_by(self) -> str:
        """The field of the request that says what its tokens may be."""
        held = self.params.constraint
        if isinstance(held, Grammar):
            return held.schemas[-1][0] if held.schemas else held.field
        if held is not None:
            return "response_format"
        return "bad_words" if self.params.allowed_token_ids is None else "allowed_token_ids"

    def _logprob(self, token: int, step: Tokens, i: int, offset: int) -> TokenLogprob:
        words, count = self._tokenizer, self.params.logprobs
        ids = [int(t) for t in step.top_ids[i, :count]]
        top = tuple((t, words.token_text(t), float(p)) for t, p in zip(ids, step.top_logprobs[i, :count]))
        data = tuple(map(words.token_bytes, (token, *ids)))
        return TokenLogprob(token, words.token_text(token), float(step.logprob[i]), top, data, offset)


def failed(seq: Sequence, error: BaseException) -> Output:
    """The last output of a sequence whose own text or grammar failed, by a library's panic or any other error."""
    log.error("an answer failed", exc_info=error)
    reason = f"the answer failed: {type(error).__name__}: {error}"
    return Output(seq.index, "", (), finish_reason="error", error=reason, of_answer=True)
