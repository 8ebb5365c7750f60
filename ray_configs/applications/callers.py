"""Weights and limits of a language model's callers, by the names of their API keys."""

from typing import Annotated

from pydantic import Field, StringConstraints

from ray_configs.base import Config, from_text

ANONYMOUS = "anonymous"
"""Caller name of requests without a key."""


class CallerConfig(Config):
    """One caller's share and limits, over all routers of a service; without routers, at each replica."""

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


Callers = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")], CallerConfig],
    from_text('{"alice": {"weight": 3}}'),
]
