"""The most characters of a text that can be one token: a longer text for each token is too long for sure."""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

NORMAL_FORM = 4
"""Most characters that a Unicode normal form makes one of."""
SHRINKING: dict[str, int] = dict.fromkeys(["NFC", "NFKC"], NORMAL_FORM) | dict.fromkeys(
    ["NFD", "NFKD", "Prepend", "Lowercase", "ByteLevel"], 1
)
"""Normalizers that are known to lose no text, and how many characters they make one of at most."""
SPLITTING = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
"""Pre-tokenizers that lose no text, unless they are told to remove what they split at."""


def longest_token(tokenizer: Tokenizer) -> int | None:
    """The most characters of a text that can be one token; None if it is not known to be bounded.

    It is where each character ends in some token: byte-pair encoding over all bytes, no normalizer or splitting that
    drops text, no added token that takes the spaces around it, no truncation.
    """
    model, shrinks = tokenizer.model, 1
    if not isinstance(model, BPE) or tokenizer.truncation is not None:
        return None
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    every_byte = model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    if not every_byte and not (_byte_level(tokenizer) and all(letter in vocab for letter in ByteLevel.alphabet())):
        return None
    for step in _steps(tokenizer.normalizer, "normalizers"):
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if not pattern or len(step["content"]) < len(pattern):
                return None
        elif step["type"] not in SHRINKING:
            return None
        shrinks *= SHRINKING.get(step["type"], 1)
    for step in _steps(tokenizer.pre_tokenizer, "pretokenizers"):
        if step["type"] not in SPLITTING or step.get("behavior") == "Removed":
            return None
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    return shrinks * max(map(len, vocab))


def _byte_level(tokenizer: Tokenizer) -> bool:
    steps = [*_steps(tokenizer.normalizer, "normalizers"), *_steps(tokenizer.pre_tokenizer, "pretokenizers")]
    return any(step["type"] == "ByteLevel" for step in steps)


def _steps(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, as tokenizer.json writes them."""
    if part is None:
        return
    described = json.loads(part.__getstate__())
    yield from described[members] if described["type"] == "Sequence" else [described]
