"""JSON that every client can read and send on, of what a model writes as JSON.

Python's parser takes more than others do: `NaN` and `Infinity`, numbers beyond a double, which become infinite, and
half of a surrogate pair, which no UTF-8 can carry. Clients in other languages fail on these, and so would a server that
writes them, so a call's arguments have none of them, in every dialect, streamed or not.
"""

import math
import re
import sys
from typing import Any

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LARGEST = repr(sys.float_info.max)
NOT_FINITE = {"NaN": "null", "Infinity": LARGEST, "-Infinity": f"-{LARGEST}"}
REPLACEMENT = "\\ufffd"
ESCAPE = len("\\uffff")
HEX = frozenset("0123456789abcdefABCDEF")
BETWEEN = frozenset('{}[],:" \t\r\n')
"""Outside of strings, what ends a number or a word."""


class Sendable:
    """Rewrites JSON piece by piece: U+FFFD for halves of surrogate pairs, null for NaN, the largest double for numbers
    beyond it. What is not JSON stays as it is. The result does not depend on how the text is split.
    """

    def __init__(self) -> None:
        self._within = False  # a string
        self._held = ""  # an escape, or two
        self._word: list[str] = []  # a number or word, outside of strings

    def feed(self, text: str) -> str:
        if self._within and not self._held and '"' not in text and "\\" not in text:
            return text
        return "".join(map(self._char, text))

    def rest(self) -> str:
        """What is still held, at the text's end. Not the first half of a pair: an answer that is cut short there would
        say what the whole one does not."""
        held, self._held = self._held, ""
        return ("" if len(held) >= ESCAPE else held) + self._ended()

    def _char(self, char: str) -> str:
        if self._within:
            return self._in_string(char)
        if char not in BETWEEN:
            self._word.append(char)
            return ""
        self._within = char == '"'
        return self._ended() + char

    def _ended(self) -> str:
        """The word that has ended, if there is one."""
        word, self._word = "".join(self._word), []
        if NUMBER.fullmatch(word) and math.isinf(float(word)):
            return NOT_FINITE["-Infinity" if word[0] == "-" else "Infinity"]
        return NOT_FINITE.get(word, word)

    def _in_string(self, char: str) -> str:
        if not self._held:
            if char == "\\":
                self._held = char
                return ""
            self._within = char != '"'
            return char
        place = len(self._held) % ESCAPE  # in its escape
        if char != "\\u"[place] if place < 2 else char not in HEX:
            return self._other(char, place)
        self._held += char
        return self._escaped() if place == ESCAPE - 1 else ""

    def _other(self, char: str, place: int) -> str:
        """No further part of what is held: half of a pair, or an escape of another kind, or none."""
        half, begun = self._held[: -place or None], self._held[len(self._held) - place :]
        self._held = ""
        before = REPLACEMENT if half else ""
        return before + begun + char if place == 1 else before + begun + self._in_string(char)

    def _escaped(self) -> str:
        """The held escapes, unless the last one may be the first half of a pair."""
        first, last = self._held[:-ESCAPE], self._held[-ESCAPE:]
        code = int(last[2:], 16)
        if 0xD800 <= code < 0xDC00:
            self._held = last
            return REPLACEMENT if first else ""
        self._held = ""
        if 0xDC00 <= code < 0xE000:
            return first + last if first else REPLACEMENT
        return (REPLACEMENT if first else "") + last


def mended(value: Any) -> Any:
    """The same for a value that Python's parser has read."""
    match value:
        case str() if not value.isascii():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
        case dict():
            return {mended(key): mended(each) for key, each in value.items()}
        case list():
            return [mended(each) for each in value]
    return value
