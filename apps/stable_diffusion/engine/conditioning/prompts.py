"""Tokenizes prompts, and caches encoded ones."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from apps.serving.errors import shortened
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.request import PictureRequest

T = TypeVar("T")

REMEMBERED = 256  # cached texts


class PromptText(NamedTuple):
    """A prompt as it was written."""

    text: str
    emphasis: bool = False
    """Whether it is read as AUTOMATIC1111 reads it: see `emphasis`. False: all of it is letters."""
    left_out: int = 0
    """Layers of the text encoder that are not read."""


@dataclass(frozen=True)
class PromptTokens:
    """A text, tokenized for the model's text encoders."""

    inputs: tuple[np.ndarray, ...]
    """As `PromptEncoder.inputs` has them."""
    dropped: str
    """The words beyond the model's limit; empty if it reads all."""


class Tokenizing(Protocol):
    """Makes what text encoders read of a text."""

    lengths: list[int]
    """Positions of each."""
    most: int
    """Tokens of a text that the model reads."""

    def __call__(self, text: PromptText) -> PromptTokens:
        """Raises ValueError for weights that cannot be read."""


def dropped_words(tokenize: Tokenizing, texts: Mapping[str, PromptText]) -> tuple[str, ...]:
    """A warning for each text that is too long, with its field and the words that the model does not see."""
    found = ((name, shortened(tokenize(text).dropped)) for name, text in texts.items() if text.text)
    return tuple(
        f"{name} is longer than the {tokenize.most} tokens that the model reads; these words were dropped: {words}"
        for name, words in found
        if words
    )


class TextCache(Generic[T]):
    """An LRU cache of a function of a text, so that n pictures of one prompt encode it once."""

    def __init__(self, make: Callable[..., T], most: int = REMEMBERED) -> None:
        self._make, self._most = make, most
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def __call__(self, text: PromptText, key: Hashable = (), *more: Any) -> T:
        """`make(text, *more)`; `key` tells one `more` from another."""
        if (text, key) not in self._known:
            self._known[text, key] = self._make(text, *more)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end((text, key))
        return self._known[text, key]


class Prompts(Generic[T]):
    """The encoded prompts of requests.

    Args:
        tokenizing: of the checkpoint.
        guided: whether pictures need a negative prompt.
        encode: runs the text encoders over `PromptTokens.inputs`, with the LoRAs of `encoded`.
        zeros: an encoded text -> the same with zeros, which stands for an empty negative prompt in most XL models.
        most: encoded texts to remember.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizing: Tokenizing,
        guided: bool,
        encode: Callable[..., T],
        zeros: Callable[[T], T],
        most: int = REMEMBERED,
    ) -> None:
        self._tokenizers = tokenizing
        self._encoded = TextCache(lambda text, *loras: encode(self._tokenizers(text).inputs, *loras), most)
        self._guided, self._zeros = guided, TextCache(lambda text: zeros(self._encoded(text)), most)
        self._zero_negative = checkpoint.is_xl and checkpoint.index.get("force_zeros_for_empty_prompt", True)

    def encoded(self, request: PictureRequest, key: Hashable = (), *loras: Any) -> tuple[T, T | None, tuple[str, ...]]:
        """The prompt, the negative prompt (None without guidance), and warnings about what was cut off them.

        Args:
            key: tells the text encoders' LoRAs from others.
            loras: what `encode` takes of them.
        """
        texts, left_out = (request.prompt, request.negative_prompt), request.clip_skip - 1
        prompt, unwanted = (PromptText(text, request.emphasis, left_out) for text in texts)
        warnings = dropped_words(self._tokenizers, {"prompt": prompt, "negative_prompt": unwanted})
        negative = None
        if self._guided:
            empty = self._zero_negative and not unwanted.text
            negative = self._zeros(unwanted) if empty else self._encoded(unwanted, key, *loras)
        return self._encoded(prompt, key, *loras), negative, warnings
