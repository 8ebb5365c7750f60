"""Requests without an answer: scoring (log probabilities of given tokens) and pooling (an embedding of a prompt).

The scheduler treats such a sequence as a prompt with a one-token answer: it gets prefill chunks, pages and cached
prefixes like any other, and ends with the step that computes its last token. That step's sample is ignored.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, ClassVar

import numpy as np

from apps.llm.api import TokenOutput, TokenRequest, TokenScore
from apps.llm.engine.execute.readout import SCORE_ROWS, Readout
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.executor_protocol import Tokens
from apps.llm.engine.schedule.sequence import Sequence, Work


class PromptTask(ABC):
    """One such sequence, beside the scheduler's `Sequence`. The loop uses it like an `Answer`."""

    penalized = False
    settings: ClassVar = {"temperature": 0.0, "top_p": 1.0, "repetition": 1.0}

    def __init__(self, seq: Sequence):
        self.seq = seq

    def plausible(self, draft: list[int]) -> list[int]:
        """Always empty: nothing is drafted."""
        return []

    @abstractmethod
    def want(self, readout: Readout, shape: StepShape, start: int, row: int, item: Work) -> None:
        """Request what the step must read out. The item's tokens start at token `start` of the step, in row `row`."""

    @abstractmethod
    def note(self, step: Tokens) -> None:
        """Keep a step's readout; called once for each `want`, in the same order."""

    def _output(self, **results: Any) -> TokenOutput:
        seq = self.seq
        return TokenOutput(
            request=seq.request.id,
            finish_reason="stop",
            cached_tokens=seq.cached_tokens,
            entered_ns=seq.entered_ns,
            **results,
        )

    @abstractmethod
    def take(self, token: int, step: Tokens, i: int) -> TokenOutput:
        """The sequence's only output, after the readouts of all its steps."""


class Scoring(PromptTask):
    """Scores each token of a suffix after a prefix."""

    def __init__(self, seq: Sequence):
        """The request's prompt has at least one token. Without a suffix there are no scores."""
        super().__init__(seq)
        prefix, suffix = seq.request.prompt_ids, seq.request.suffix
        assert suffix is not None
        self.seq.reusable = len(prefix) - 1  # the last prefix token's hidden state scores the first suffix token
        self._suffix, self._first = suffix, len(prefix) - 1
        self._scores = np.zeros((SCORE_ROWS, len(suffix)), np.int32)
        self._wanted: deque[tuple[int, slice]] = deque()  # for each step: first token in it, part of the suffix

    def want(self, readout: Readout, shape: StepShape, start: int, row: int, item: Work) -> None:
        skipped = max(self._first - item.start, 0)
        stop = min(max(item.stop - self._first, 0), len(self._suffix))
        part = slice(item.start + skipped - self._first, stop)
        if part.stop:
            readout.score(shape, start + skipped, self._suffix[part])
        self._wanted.append((start + skipped, part))

    def note(self, step: Tokens) -> None:
        start, part = self._wanted.popleft()
        if part.stop:
            assert step.scores is not None  # `want` asked for them
            self._scores[:, part] = step.scores[:, start : start + part.stop - part.start]

    def take(self, token: int, step: Tokens, i: int) -> TokenOutput:
        own, rank, likeliest, top = self._scores
        columns = own.view(np.float32), rank, likeliest, top.view(np.float32)
        scores = tuple(map(TokenScore, *(column.tolist() for column in columns)))
        return self._output(scores=scores)


class Pooling(PromptTask):
    """Embeds a prompt: the mean of its tokens' hidden states, or the last one's, normalized to length 1."""

    def __init__(self, seq: Sequence):
        super().__init__(seq)
        self._all = seq.request.pooling == "mean"
        if self._all:
            self.seq.reusable = 0
        self._sum: np.ndarray | float = 0.0  # [hidden], once there is one
        self._wanted: deque[tuple[int, Work]] = deque()  # for each step: the sequence's row in it

    def want(self, readout: Readout, shape: StepShape, start: int, row: int, item: Work) -> None:
        stop = start + item.stop - item.start
        if self._all or item.samples:
            readout.pool(shape, start if self._all else stop - 1, stop, row)
        self._wanted.append((row, item))

    def note(self, step: Tokens) -> None:
        row, item = self._wanted.popleft()
        if self._all or item.samples:
            # A sum restarts at token 0, also after a preemption.
            before = 0.0 if item.start == 0 or not self._all else self._sum
            assert step.pooled is not None  # `want` asked for them
            self._sum = before + step.pooled[row]

    def take(self, token: int, step: Tokens, i: int) -> TokenOutput:
        # Normalized, the sum equals the mean.
        vector = np.asarray(self._sum) / max(float(np.linalg.norm(self._sum)), 1e-12)
        return self._output(embedding=vector.astype(np.float32).tobytes())


def tokens_of(request: TokenRequest) -> list[int]:
    """What is computed of a request without an answer: its prompt, and all of its suffix but the last token, which
    nothing follows."""
    return [*request.prompt_ids, *(request.suffix or ())[:-1]]


def prompt_task(seq: Sequence) -> PromptTask:
    """The task of a request without an answer."""
    return Pooling(seq) if seq.request.suffix is None else Scoring(seq)
