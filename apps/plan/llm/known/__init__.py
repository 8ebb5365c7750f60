"""What is known of public models, for planning without their files: gated, offline, in a mounted bucket."""

from apps.plan.llm.known.decoders import MODELS
from apps.plan.llm.known.towers import TOWERS

__all__ = "MODELS", "TOWERS", "find"

_SUFFIXES = ("-instruct", "-it", "-chat", "-base", "-hf")


def _plain(name: str) -> str:
    name = name.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-").replace("-chat-hf", "-hf")
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("-instruct-", "-")  # Mistral-7B-Instruct-v0.3


_BY_NAME = {_plain(name): name for name in MODELS}


def find(model: str) -> str | None:
    """The entry of MODELS that the last part of a hub id, folder or URL names, or None."""
    return _BY_NAME.get(_plain(model))
