"""Tokenizes prompts, and caches encoded ones."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import shortened
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.request import PictureRequest

T = TypeVar("T")

REMEMBERED = 256  # cached texts


@dataclass(frozen=True)
class PromptTokens:
    """A text, tokenized for the model's text encoders."""

    ids: tuple[np.ndarray, ...]
    """int32, as `PromptEncoder.inputs` has them: [1, positions] for each tokenizer of CLIP."""
    dropped: str
    """The words beyond the model's limit; empty if it reads all."""


class Tokenizing(Protocol):
    """Makes what text encoders read of a text."""

    lengths: list[int]
    """Positions of each."""

    def __call__(self, text: str) -> PromptTokens: ...

    def warnings(self, **texts: str) -> tuple[str, ...]:
        """A warning for each text that is too long, with its field and the words that the model does not see."""


def dropped_words(tokenize: Callable[[str], PromptTokens], most: int, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Those warnings. `most`: tokens of a text that the model reads."""
    found = ((name, shortened(tokenize(text).dropped)) for name, text in texts.items() if text)
    return tuple(
        f"{name} is longer than the {most} tokens that the model reads; these words were dropped: {words}"
        for name, words in found
        if words
    )


class Tokenizers:
    """A checkpoint's one or two CLIP tokenizers, with a cache."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        import transformers

        self._tokenizers: list[Any] = []
        self.lengths: list[int] = []
        with checkpoint.local_folder(*checkpoint.tokenizers) as folder:
            for name, encoder in zip(checkpoint.tokenizers, checkpoint.text_encoders):
                try:
                    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/{name}")
                except (OSError, ValueError) as error:
                    raise CheckpointError(f"{checkpoint.location}/{name}: no tokenizer can be read: {error}") from error
                positions = checkpoint.config(encoder).get("max_position_embeddings", 77)
                self._tokenizers.append(tokenizer)
                self.lengths.append(min(tokenizer.model_max_length, positions))
        self._known = TextCache(self._tokenize)

    def __call__(self, text: str) -> PromptTokens:
        return self._known(text)

    def _tokenize(self, text: str) -> PromptTokens:
        ids, dropped = [], ""
        for tokenizer, length in zip(self._tokenizers, self.lengths):
            whole = tokenizer(text, truncation=False, verbose=False)["input_ids"]
            if len(whole) > length:  # its end token stays
                dropped = dropped or tokenizer.decode(whole[length - 1 : -1]).strip()
                whole = [*whole[: length - 1], whole[-1]]
            ids.append(np.array([whole + [tokenizer.pad_token_id] * (length - len(whole))], np.int32))
        return PromptTokens(tuple(ids), dropped)

    def warnings(self, **texts: str) -> tuple[str, ...]:
        return dropped_words(self, min(self.lengths) - 2, texts)  # without the start and end tokens


class TextCache(Generic[T]):
    """An LRU cache of a function of a text, so that n pictures of one prompt encode it once."""

    def __init__(self, make: Callable[..., T], most: int = REMEMBERED) -> None:
        self._make, self._most = make, most
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def __call__(self, text: str, key: Hashable = (), *more: Any) -> T:
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
        encode: runs the text encoders over a text's ids, [1, positions] for each of them, with the LoRAs of `encoded`.
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
        self._encoded = TextCache(lambda text, *loras: encode(self._tokenizers(text).ids, *loras), most)
        self._guided, self._zeros = guided, TextCache(lambda text: zeros(self._encoded(text)), most)
        self._zero_negative = checkpoint.is_xl and checkpoint.index.get("force_zeros_for_empty_prompt", True)

    def encoded(self, request: PictureRequest, key: Hashable = (), *loras: Any) -> tuple[T, T | None, tuple[str, ...]]:
        """The prompt, the negative prompt (None without guidance), and warnings about what was cut off them.

        Args:
            key: tells the text encoders' LoRAs from others.
            loras: what `encode` takes of them.
        """
        warnings = self._tokenizers.warnings(prompt=request.prompt, negative_prompt=request.negative_prompt)
        negative = None
        if self._guided:
            empty = self._zero_negative and not request.negative_prompt
            if empty:
                negative = self._zeros(request.negative_prompt)
            else:
                negative = self._encoded(request.negative_prompt, key, *loras)
        return self._encoded(request.prompt, key, *loras), negative, warnings
