"""Masks of the tokens that a request allows: `allowed_token_ids`, and runs that are `banned`, vLLM's `bad_words`.

A mask is `[ceil(vocab / 32)]` uint32, with a bit for each token.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from apps.llm.api import Sampling

Mask = np.ndarray | None
"""None allows every token."""


def both(one: Mask, other: Mask) -> Mask:
    """What both masks allow."""
    return other if one is None else one if other is None else one & other


def without(vocab_size: int, tokens: Iterable[int]) -> np.ndarray:
    """All tokens but these."""
    mask = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
    mask[-1] >>= -vocab_size % 32
    for token in tokens:
        mask[token // 32] &= ~np.uint32(1 << token % 32)
    return mask


class AllowedTokens:
    """The tokens that an answer may have.

    Args:
        always: a mask of every token.
        phrases: tokens that may not come one after another, two or more.
    """

    def __init__(self, vocab_size: int, always: Mask, phrases: Sequence[tuple[int, ...]]):
        self._vocab_size, self._always, self.phrases = vocab_size, always, phrases
        self.memory = max(map(len, phrases), default=1) - 1
        """Tokens of an answer that the next one depends on."""

    @classmethod
    def of(cls, sampling: Sampling, vocab_size: int) -> "AllowedTokens | None":
        """Those of a request; None if it allows all."""
        if sampling.allowed_token_ids is None and not sampling.banned:
            return None
        always: Mask = None
        if sampling.allowed_token_ids is not None:
            always = ~without(vocab_size, sampling.allowed_token_ids)
        single = [phrase[0] for phrase in sampling.banned if len(phrase) == 1]
        if single:
            always = both(always, without(vocab_size, single))
        return cls(vocab_size, always, [phrase for phrase in sampling.banned if len(phrase) > 1])

    def within(self, masks: list[Mask], answer: Sequence[int], draft: Sequence[int]) -> list[Mask]:
        """The masks, and of them what may follow an answer, whose last `memory` tokens are enough, and each token of
        its draft."""
        found = []
        for i, mask in enumerate(masks):
            before = (*answer, *draft[:i])
            ends = [phrase[-1] for phrase in self.phrases if before[1 - len(phrase) :] == phrase[:-1]]
            mask = both(mask, self._always)
            found.append(both(mask, without(self._vocab_size, ends)) if ends else mask)
        return found
