"""Single tokens in words: the text and the bytes that each has within a text."""

import re
from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte in the vocabulary of a tokenizer of SentencePiece's kind."""
PART = "\ufffd"
"""Stands for a part of a character, which has no text."""


def byte_letters() -> Sequence[str]:
    """The character that a byte-level tokenizer writes for each of the 256 bytes: its own, or one from 256 up."""
    alphabet = sorted(ByteLevel.alphabet())
    own = {ord(char) for char in alphabet if ord(char) < 256}
    rest = iter(alphabet[len(own) :])
    return [chr(byte) if byte in own else next(rest) for byte in range(256)]


class Spelling:
    """The tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Alone, a token of SentencePiece's kind loses the space that it begins with: it is at a text's beginning.
        self._before = tokenizer.encode("a", add_special_tokens=False).ids
        self._begins = tokenizer.decode(self._before)
        self._bytes = {letter: byte for byte, letter in enumerate(byte_letters())}
        self.of = lru_cache(maxsize=4096)(self._of)
        """(text, bytes) of a token."""

    def _of(self, token: int) -> tuple[str, bytes]:
        within = self._tokenizer.decode([*self._before, token], skip_special_tokens=False)
        if within.startswith(self._begins):
            text = within.removeprefix(self._begins)
        else:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
        return text, self._part(token) or text.encode() if PART in text else text.encode()

    def _part(self, token: int) -> bytes:
        """The bytes of a token that is a part of a character; empty if they are not known."""
        piece = self._tokenizer.id_to_token(token) or ""
        if byte := BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return bytes(self._bytes[letter] for letter in piece) if all(letter in self._bytes for letter in piece) else b""
