"""Weights and limits of a language model's callers, by the names of their API keys."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from ray_configs.base import Config

ANONYMOUS = "anonymous"
"""Caller name of requests without a key."""


class CallerConfig(Config):
    """One caller's share and limits. Each replica enforces them on its own."""

    weight: float = Field(1, gt=0, le=1000)
    """Share of slots, tokens and queue places, relative to the other backlogged callers."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Prompt and answer tokens; up to a minute's worth accumulates. Admitted requests run to the end: a caller that
    overdraws waits longer for its next one. None: no limit."""
    max_requests: int | None = Field(None, ge=1)
    """Requests open at a time, waiting or running. Each prompt of a request counts. None: no limit."""
    cache_group: str | None = Field(None, min_length=1)
    """Callers of the same group share the prefix cache, where callers have it to themselves
    (`prefix_cache_sharing`). None: this caller's own."""


def _from_text(value: Any) -> Any:
    """Parse the JSON that command lines pass."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f'must be JSON such as {{"alice": {{"weight": 3}}}}: {error}') from None


Callers = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")], CallerConfig], BeforeValidator(_from_text)
]
