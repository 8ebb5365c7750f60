"""Converts arguments written in near-JSON to JSON: Python literals, and Gemma's strings between marks."""

import json
import math
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass

from apps.llm.chat.machines.values import Emit, blank, exactly
from apps.llm.chat.reader import END, Machine, NotACall

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORDS = {word: json_word for json_word in ("true", "false", "null") for word in (json_word, json_word.capitalize())}
WORDS["None"] = "null"
ESCAPES = {c: "\\" + c for c in 'nrtbf"\\'} | {"'": "'", "/": "/", "0": "\\u0000", "a": "\\u0007", "v": "\\u000b"}
HEX = {"x": 2, "u": 4, "U": 8}


@dataclass
class Nest:
    """An open object or array."""

    closes: str
    after_key: str  # "" for an array
    filled: bool = False


def members(char: str, emit: Emit, closes: str, after_key: str = ":", quote: str = "") -> Machine:
    """Parses an object's members, from the character after its opening bracket to the one after its closing bracket.

    Args:
        after_key: separates a key from its value; always ":" in nested objects.
        quote: a mark around strings without escapes.
    """
    emit("{")
    nests = [Nest(closes, after_key)]
    while nests:
        nest = nests[-1]
        char = yield from blank(char)
        if nest.filled and char == ",":  # a trailing comma is allowed
            char = yield
            char = yield from blank(char)
        elif nest.filled and char != nest.closes:
            raise NotACall(char)
        if char == nest.closes:
            nests.pop()
            emit("}" if nest.after_key else "]")
            char = yield
            continue
        if nest.filled:
            emit(", ")
        nest.filled = True
        if nest.after_key:
            char = yield from _key(char, nest.after_key, quote, emit)
            char = yield from blank(char)
        if char is not END and char in "{[(":
            nests.append(Nest({"{": "}", "[": "]", "(": ")"}[char], ":" if char == "{" else ""))
            emit("{" if char == "{" else "[")
            char = yield
        elif char in ('"', "'") or (quote and char == quote[0]):
            char = yield from _text(char, emit, quote)
        else:
            written, char = yield from _bare(char, ",)]}")
            emit(_scalar(written))
    return char


def _key(char: str, after: str, quote: str, emit: Emit) -> Machine:
    if char in ('"', "'") or (quote and char == quote[0]):
        raw: list[str] = []
        char = yield from _text(char, raw.append, quote)
        key = "".join(raw)
    else:
        written, char = yield from _bare(char, after + ",)]}")
        key = json.dumps(written, ensure_ascii=False)
    char = yield from blank(char)
    char = yield from exactly(char, after)
    emit(key + ": ")
    return char


def _bare(char: str, ends: str) -> Generator[None, str, tuple[str, str]]:
    letters = []
    while char is not END and char not in ends and not char.isspace():
        letters.append(char)
        char = yield
    if not letters or char is END:
        raise NotACall(char)
    return "".join(letters), char


def _scalar(written: str) -> str:
    """A number or keyword as JSON; anything else is a string without quotes."""
    if written in WORDS:
        return WORDS[written]
    if NUMBER.fullmatch(written):
        return written
    try:
        return str(int(written, 0))
    except ValueError:
        pass
    try:
        number = float(written)
        if math.isfinite(number):
            return repr(number)
    except ValueError:
        pass
    return json.dumps(written, ensure_ascii=False)


def _text(char: str, emit: Emit, quote: str) -> Machine:
    """Converts a string to JSON's."""
    marked = char not in ('"', "'")
    closes = quote if marked else char
    char = yield from exactly(char, closes)
    emit('"')
    while True:
        if char is END:
            raise NotACall(END)
        if char == closes[0]:
            found = 0
            while found < len(closes) and char == closes[found]:
                found += 1
                char = yield
            if found == len(closes):
                emit('"')
                return char
            if char is not END:
                emit(_escaped(closes[:found]))
        elif char == "\\" and not marked:
            char = yield
            char = yield from _escape(char, emit)
        else:
            emit(_escaped(char))
            char = yield


def _escape(char: str, emit: Emit) -> Machine:
    """Converts the rest of an escape, after its backslash, to JSON's."""
    if char is END:
        raise NotACall(END)
    if char in HEX:
        digits = ""
        letter = char
        char = yield
        while len(digits) < HEX[letter] and char is not END and char in "0123456789abcdefABCDEF":
            digits += char
            char = yield
        if char is END:
            raise NotACall(END)
        if len(digits) < HEX[letter] or int(digits, 16) > sys.maxunicode:
            emit("\\\\" + letter + digits)
        else:  # halves of surrogate pairs stay escaped: the other half may follow
            short = digits[-4:].zfill(4)
            emit("\\u" + short if int(digits, 16) < 2**16 else _escaped(chr(int(digits, 16))))
        return char
    if char != "\n":  # an escaped line end continues a Python string
        emit(ESCAPES.get(char) or "\\\\" + _escaped(char))
    return (yield)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
