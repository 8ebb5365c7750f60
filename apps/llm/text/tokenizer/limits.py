"""Limits of a request's texts, which are checked before they are tokenized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.llm.api import MAX_CHOICES, MAX_COPIED, MAX_SEQUENCES, PromptTooLong, RequestError

NO_DEFAULTS: Mapping[str, Any] = {}
"""Of sampling: every field that a request leaves out has SamplingParams' own value."""


@dataclass(frozen=True)
class TokenLimit:
    """The most tokens that a text may have, and what says so.

    Args:
        field: of the request.
        holder: what has no room for more: `the model's context`.
    """

    tokens: int
    field: str = "prompt"
    holder: str = "the model's context"

    def check(self, count: int) -> None:
        """Raises PromptTooLong for more tokens than that."""
        if count > self.tokens:
            raise self.exceeded(f"{count} tokens")

    def exceeded(self, found: str) -> PromptTooLong:
        named = f"the {self.field}" if self.field.isalpha() else self.field
        return PromptTooLong(self.field, f"{named} has {found}, but {self.holder} holds {self.tokens}")


def check_suffixes(suffixes: Sequence[Any]) -> None:
    """Raises RequestError unless they are a list with as many as one request may score."""
    if isinstance(suffixes, str) or not 1 <= len(suffixes) <= MAX_CHOICES:
        raise RequestError("suffix", f"suffixes must be a list of 1 to {MAX_CHOICES}")


def check_copies(prompts: Sequence[Sequence[int]], n: int) -> None:
    """Raises RequestError if n answers to each prompt are more than one request may ask for."""
    if not 1 <= n <= MAX_CHOICES:
        return  # which the engine refuses
    if len(prompts) * n > MAX_SEQUENCES:
        raise RequestError("n", f"n is {n}, for each of {len(prompts)} prompts: a request has {MAX_SEQUENCES} answers")
    if sum(map(len, prompts)) * n > MAX_COPIED:
        raise RequestError("n", f"n is {n}: the prompts are too long for so many answers in one request")


def default_limit(defaults: Mapping[str, Any], least: int | None = None) -> dict[str, Any]:
    """Of an answer whose request names no limit: the model's own, at least `least` tokens; empty if it has none."""
    own = defaults.get("max_tokens")
    return {} if own is None else {"max_tokens": max(own, least or 0), "within_context": True}
