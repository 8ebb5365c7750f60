"""CLIP's tokenizers, one or two side by side: Stable Diffusion 1.x, 2.x and XL."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from apps.stable_diffusion.engine.conditioning.chunks import PromptChunk, WeightedTokens, chunked
from apps.stable_diffusion.engine.conditioning.emphasis import WeightedPart, weighted_parts
from apps.stable_diffusion.engine.conditioning.prompts import PromptText, PromptTokens, TextCache
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint


class ClipTokens:
    """The `Tokenizing` of CLIP's text encoders.

    Args:
        chunks: of a prompt, at most; each of as many tokens as a text encoder has positions.
    """

    def __init__(self, checkpoint: Checkpoint, chunks: int = 1) -> None:
        self._chunks = chunks
        self._tokenizers: list[_Tokenizer] = []
        for name, encoder in zip(checkpoint.tokenizers, checkpoint.text_encoders):
            tokenizer = checkpoint.tokenizer(name)
            positions = checkpoint.config(encoder).get("max_position_embeddings", 77)
            self._tokenizers.append(_Tokenizer(tokenizer, min(tokenizer.model_max_length, positions)))
        self.lengths = [each.length for each in self._tokenizers]
        self.most = chunks * min(each.capacity for each in self._tokenizers)
        self._known = TextCache(self._tokenize)

    def __call__(self, text: PromptText) -> PromptTokens:
        return self._known(text)

    def _tokenize(self, text: PromptText) -> PromptTokens:
        """As `ClipEncoder.inputs` has them."""
        parts = weighted_parts(text.text) if text.emphasis else [WeightedPart(text.text)]
        each, beyond = zip(*(tokenizer.chunked(parts, self._chunks) for tokenizer in self._tokenizers))
        dropped = next((words for words in beyond if words), "")
        filled = [tokenizer.filled(chunks, self._chunks) for tokenizer, chunks in zip(self._tokenizers, each)]
        ids, weights = zip(*filled)
        used = [np.array(max(map(len, each)), np.int32)] if self._chunks > 1 else []
        left_out = [np.array(text.left_out, np.int32)] if len(ids) == 1 else []
        return PromptTokens((*ids, *weights, *left_out, *used), dropped)


class _Tokenizer:
    """One of them, and the positions of its encoder."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self._tokenizer, self.length, self.capacity = tokenizer, length, length - 2
        self._start, self._end = tokenizer("")["input_ids"]
        self._comma = tokenizer.get_vocab().get(",</w>")

    def chunked(self, parts: Iterable[WeightedPart], most: int) -> tuple[list[PromptChunk], str]:
        """A prompt's chunks, at most so many, and the words for which there is no room."""
        tokens = (WeightedTokens(self._ids(part.text), part.weight, part.begins_chunk) for part in parts)
        chunks, beyond = chunked(tokens, self.capacity, most, self._comma)
        return chunks, self._tokenizer.decode(beyond).strip()

    def filled(self, chunks: list[PromptChunk], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """[rows, length] ids between start and end, and weights."""
        ids = np.full((rows, self.length), self._tokenizer.pad_token_id, np.int32)
        weights = np.ones((rows, self.length), np.float32)
        ids[:, :2] = self._start, self._end  # of rows without words
        for i, chunk in enumerate(chunks):
            ids[i, 1 : len(chunk) + 2] = [*chunk.ids, self._end]
            weights[i, 1 : len(chunk) + 1] = chunk.weights
        return ids, weights

    def _ids(self, text: str) -> list[int]:
        whole: list[int] = self._tokenizer(text, truncation=False, verbose=False)["input_ids"]
        return whole[1:-1]
