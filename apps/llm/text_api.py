"""Requests to a language model in words, and their answers in text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from apps.llm.api import (
    AnswerFailed,
    EngineError,
    EngineStopped,
    FinishReason,
    Grammar,
    RequestError,
    TokenScore,
)


class PieceReader(Protocol):
    """Reads an answer's text, piece by piece, as chat's readers do: into their events, up to a stop string."""

    stopped: str | None
    called: int  # tools, so far

    def feed(self, text: str) -> list[Any]: ...

    def finish(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the text of an answer must be, where that is no JSON.

    Args:
        rule: the right side of a rule in llguidance's dialect of Lark.
        field: of the request, which error messages name.
        like: a JSON schema that is as hard to follow; None: not known.
    """

    rule: str
    field: str
    like: Mapping[str, Any] | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar of an answer that is this text alone."""
        lark = f"%llguidance {{}}\nstart: content\ncontent: {self.rule}\n"
        return Grammar(lark, ((self.field, self.like),)) if self.like is not None else Grammar(lark, (), (self.field,))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample tokens, in OpenAI's terms plus vLLM's extensions. Checked by `Engine.submit`."""

    max_tokens: int | None = None  # None: as far as the context allows
    within_context: bool = False  # if max_tokens exceeds the context, end the answer there; False: refuse the request
    min_tokens: int = 0  # no eos and no stop token before this many
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 0: greedy
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0  # on tokens of the answer so far, once each
    frequency_penalty: float = 0.0  # on tokens of the answer so far, by count
    repetition_penalty: float = 1.0  # on tokens of prompt and answer (1: off)
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added to its logit
    logprobs: int | None = None  # None: none; k: of the sampled token and the k likeliest ones
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_text: bool = False
    json_schema: str | dict[str, Any] | None = None  # a JSON schema; {} or "{}" means any JSON object
    pattern: Pattern | None = None  # instead of json_schema: what the answer must be
    grammar: Grammar | None = None  # instead of both: a grammar that the answer must follow
    bad_words: Sequence[str] = ()  # their tokens never come one after another
    allowed_token_ids: Sequence[int] | None = None  # no other token is sampled; None: all
    reader: Callable[[], PieceReader | None] | None = field(default=None, compare=False)
    """Makes readers of the answers; None if they are only text. With them, stop strings end an answer in its text, not
    in its reasoning nor in the arguments of a call."""
    shown_tokens: frozenset[int] = frozenset()  # special tokens whose text is included in the answer's
    priority: int = 0  # a caller's waiting requests go by priority, lowest first, then by arrival
    cache_salt: str = ""  # shares cached prefixes only with requests of the same salt


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token's log probability (of the model's own distribution, before temperature)."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...]  # the likeliest tokens: (id, text, logprob), likeliest first
    data: tuple[bytes, ...]  # bytes of the token, and of those: a part of a character has no text
    offset: int  # characters of the answer before it


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt."""

    token_id: int
    text: str
    shown: int  # characters of the prompt's text that it completes; 0 for a special token
    score: TokenScore | None = None  # None for the first token, which has no context
    likeliest_text: str = ""


class Output(msgspec.Struct, frozen=True):  # made for every token; a dataclass takes longer
    """New output of one sequence of a request. No stop string can remove any of `text` later."""

    index: int  # which of the request's n sequences
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None  # set once, in the sequence's last output
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    error: str | None = None  # with finish_reason "error": what went wrong
    of_answer: bool = False  # with an error: it is this answer's alone, the engine goes on
    at_fault: str | None = None  # and the field of the request that is the reason, if one is
    scores: tuple[TokenScore, ...] = ()  # for a scored suffix: one for each token
    embedding: np.ndarray | None = None  # for an embedded prompt: [hidden] float32, of length 1

    def moved(self, by: int) -> "Output":
        """A copy whose index is larger by this number: for the outputs of one prompt among several."""
        return msgspec.structs.replace(self, index=self.index + by)

    def failure(self) -> EngineError | None:
        """Why the sequence ended before its answer was complete; None if it did not."""
        if self.finish_reason not in ("error", "abort"):
            return None
        if self.at_fault is not None:
            return RequestError(self.at_fault, self.error or "")
        return (AnswerFailed if self.of_answer else EngineStopped)(self.error or "the request was aborted")

    def raise_failure(self) -> None:
        """Raises AnswerFailed or EngineStopped if the sequence ended before its answer was complete; RequestError if a
        field of the request is the reason."""
        if (failure := self.failure()) is not None:
            raise failure
