"""What the HTTP faces see of a language model, wherever its engine runs."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from apps.llm.api import EngineStats, Output, Pool, SamplingParams


class Stream(Protocol):
    """A request under way. Whoever leaves it before its end calls `abort()`."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed again; known from the first output on."""

    def batches(self) -> AsyncIterator[list[Output]]:
        """All outputs that wait, oldest first: one list a step; ends when each of the n answers has ended."""
        ...

    def abort(self) -> None:
        """Frees the request within one step; safe after its end."""
        ...


class Model(Protocol):
    """One served model. Async, so that a face need not know whether the engine is in this process."""

    name: str
    created: int
    """Unix time at which it was loaded."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    embedding_size: int
    """Numbers in an embedding."""

    async def encode(self, text: str) -> list[int]: ...

    async def decode(self, token_ids: Sequence[int]) -> str: ...

    async def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation; RequestError if the chat template refuses it or there is none."""
        ...

    async def submit(self, prompt: str | Sequence[int], params: SamplingParams) -> Stream:
        """Raises RequestError (PromptTooLong), QueueFull or EngineStopped."""
        ...

    async def score(self, prefix: str | Sequence[int], suffixes: Sequence[str | Sequence[int]]) -> list[list[float]]:
        """Log probability of each token of each suffix, directly after the prefix.

        A prefix is encoded as a prompt is; a suffix by itself, without special tokens: no token spans the boundary.
        Cancelling frees what it holds. Raises RequestError (PromptTooLong; fields `prefix` and `suffix`), QueueFull or
        EngineStopped.
        """
        ...

    async def embed(self, prompts: Sequence[str | Sequence[int]], pooling: Pool) -> list[np.ndarray]:
        """A vector of length 1 for each prompt, `[embedding_size]` float32: mean or last hidden state.

        Many prompts are no reason for a 429: only the first is refused when the queue is full, the others wait for
        room. Cancelling frees what is held. Raises as `score`; the fields are `prompt` and `pooling`.
        """
        ...

    def stats(self) -> EngineStats: ...

    def check(self) -> None:
        """Raises EngineStopped if the engine cannot answer."""
        ...


Models = Mapping[str, Model]
"""Served models by their names."""
