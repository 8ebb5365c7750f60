"""What each caller of a language model may have, by the name of its API key."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from ray_configs.base import Config

ANONYMOUS = "anonymous"
"""Name of all who come without a key."""


class CallerConfig(Config):
    """One caller's share and limits. Each replica counts for itself."""

    weight: float = Field(1, gt=0, le=1000)
    """Share of places, of tokens and of the queue, relative to the other callers that want some at the time."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Tokens of prompts and answers; up to a minute's are saved up. What has been admitted runs to its end: a caller
    that went beyond waits the longer. None: no limit."""
    max_requests: int | None = Field(None, ge=1)
    """Requests open at a time, waiting or running. Each prompt of a request counts. None: no limit."""


def _from_text(value: Any) -> Any:
    """Command lines have it as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f'must be JSON such as {{"alice": {{"weight": 3}}}}: {error}') from None


Callers = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")], CallerConfig], BeforeValidator(_from_text)
]
