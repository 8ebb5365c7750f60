"""Whole answers, for scripts: submits many requests, and waits for all of them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np

from apps.llm.api import Pool, QueueFull
from apps.llm.text.generation import Generation
from apps.llm.text_api import Output, SamplingParams


class Scripting(ABC):
    """What a script calls, over requests that are read as they come."""

    @abstractmethod
    def submit(self, prompt: str | Ids[int], params: SamplingParams | None = None) -> Generation: ...

    @abstractmethod
    def submit_score(self, prefix: str | Ids[int], suffixes: Ids[str | Ids[int]]) -> Generation: ...

    @abstractmethod
    def submit_embedding(self, prompt: str | Ids[int], pooling: Pool = "mean") -> Generation: ...

    def generate(self, prompts: Ids[str | Ids[int]], params: SamplingParams | None = None) -> list[str]:
        """The answers to many prompts, in order: submits all (waiting while the queue is full), then reads them."""
        generations = [_submit_when_free(self.submit, prompt, params) for prompt in prompts]
        return ["".join(part.text for part in _outputs_of(generation) if part.index == 0) for generation in generations]

    def score(self, prefix: str | Ids[int], suffixes: Ids[str | Ids[int]]) -> list[list[float]]:
        """Log probability of each token of each suffix after the prefix, by the model's own distribution; see
        `submit_score`. Saxml's score of a suffix is their sum."""
        parts = _outputs_of(_submit_when_free(self.submit_score, prefix, suffixes))
        return [[score.logprob for score in part.scores] for part in sorted(parts, key=lambda part: part.index)]

    def embed(self, prompts: Ids[str | Ids[int]], pooling: Pool = "mean") -> np.ndarray:
        """A vector of length 1 for each prompt, `[prompts, hidden]` float32: the hidden states after the final norm,
        averaged over the prompt's tokens or of the last one."""
        generations = [_submit_when_free(self.submit_embedding, prompt, pooling) for prompt in prompts]
        return np.stack([np.asarray(_outputs_of(generation)[0].embedding) for generation in generations])


def _submit_when_free(submit: Callable[..., Generation], *request: Any) -> Generation:
    """Submit, waiting while the queue is full."""
    while True:
        try:
            return submit(*request)
        except QueueFull:
            time.sleep(0.01)


def _outputs_of(generation: Generation) -> list[Output]:
    """All outputs of a request. Raises EngineStopped."""
    parts = list(generation)
    for part in parts:
        part.raise_failure()
    return parts
