"""Fields of a component's config: those that are read, and those whose other values would mean another network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.stable_diffusion.engine.model.checkpoint import CheckpointError


def read(config: Mapping[str, Any], component: str, name: str) -> Any:
    """A field that must be there."""
    if config.get(name) is None:
        raise CheckpointError(f"{component}/config.json: the field {name} is missing")
    return config[name]


def refuse_others(config: Mapping[str, Any], component: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """CheckpointError for a field whose value isn't among the allowed ones; an absent field is fine."""
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            choice = " or ".join(map(repr, values))
            raise CheckpointError(
                f"{component}/config.json: {name} {config[name]!r} is not supported, only {choice}; "
                "Stable Diffusion 1.x, 2.x and XL have that"
            )
