"""Machines for what calls are written in: words, and JSON as models write it.

Each gets the first character of its part and returns the first one after it. Raises Unfit where something else stands.
"""

import json
from collections.abc import Callable, Generator
from typing import Any

from apps.llm.chat.reader import END, AnswerReader, Machine, Unfit

Say = Callable[[str], None]
ARGUMENTS = ("arguments", "parameters")
"""The keys under which a call's object has its arguments."""
CONTROLS = {char: json.dumps(char)[1:-1] for char in map(chr, range(32))}
"""As JSON's strings have them. Models write them as they are, line breaks in programs above all."""


def blank(char: str) -> Machine:
    """White space, or none."""
    while char.isspace():
        char = yield
    return char


def exactly(char: str, text: str) -> Machine:
    for expected in text:
        if char != expected:
            raise Unfit(char)
        char = yield
    return char


def closing(char: str, text: str) -> Machine:
    """What ends a call, after white space; an answer may be cut short before it."""
    char = yield from blank(char)
    for expected in text:
        if char is END:
            break
        if char != expected:
            raise Unfit(char)
        char = yield
    return char


def word(char: str) -> Generator[None, str, tuple[str, str]]:
    """A tool's name or the like, as it stands there without quotes: (the word, the character after it)."""
    letters = []
    while char.isalnum() or (char is not END and char in "_-."):
        letters.append(char)
        char = yield
    return "".join(letters), char


def string(char: str) -> Generator[None, str, tuple[str, str]]:
    """A JSON string: (its text, the character after it)."""
    raw: list[str] = []
    if char != '"':
        raise Unfit(char)
    char = yield from json_value(char, raw.append)
    try:
        text = json.loads("".join(raw), strict=False)
    except ValueError:
        raise Unfit(char) from None
    return text, char


def json_value(char: str, say: Say) -> Machine:
    """A JSON value as it is written, told by its brackets and quotes alone; control characters in strings escaped."""
    depth = 0
    while char is not END:
        if char == '"':
            say(char)
            char = yield
            while char not in ('"', END):
                say(CONTROLS.get(char, char))
                if char == "\\":
                    char = yield
                    if char is END:
                        return END
                    say(char)
                char = yield
            if char is END:
                return END
            say(char)
            char = yield
            if depth == 0:
                return char
            continue
        if char in "{[":
            depth += 1
        elif char in "}]":
            if depth == 0:
                return char
            depth -= 1
            if depth == 0:
                say(char)
                return (yield)
        elif depth == 0 and (char == "," or char.isspace()):
            return char
        say(char)
        char = yield
    return END


def call_object(reader: AnswerReader, char: str, arguments_needed: bool = False) -> Machine:
    """`{"name": ..., "arguments": {...}}`, its keys in any order and others beside them.

    Args:
        arguments_needed: an object with no more than a name is no call.
    """
    name: str | None = None
    held: str | None = None  # arguments that came before the name
    told = False

    def tell(arguments: str) -> None:
        assert name is not None
        reader.begin(name)
        reader.piece(arguments)
        reader.end()

    char = yield from exactly(char, "{")
    char = yield from blank(char)
    while char != "}":
        key, char = yield from string(char)
        char = yield from blank(char)
        char = yield from exactly(char, ":")
        char = yield from blank(char)
        if key == "name" and name is None:
            name, char = yield from string(char)
            if name not in reader.names:
                raise Unfit(char)
            if held is not None:
                tell(held)
                told = True
        elif key in ARGUMENTS and held is None and not told:
            if char == "{" and name is not None:
                reader.begin(name)
                char = yield from json_value(char, reader.piece)
                reader.end()
                told = True
            else:
                held, char = yield from _arguments(char)
                if name is not None:
                    tell(held)
                    told = True
        else:
            char = yield from json_value(char, lambda _: None)
        char = yield from blank(char)
        if char == ",":
            char = yield
            char = yield from blank(char)
        elif char != "}":
            raise Unfit(char)
    char = yield
    if not told:
        if name is None or arguments_needed:
            raise Unfit(char)
        tell("{}")
    return char


def call_list(reader: AnswerReader, char: str, arguments_needed: bool = False) -> Machine:
    """`[{"name": ...}, ...]`: objects of calls, one at least."""
    char = yield from exactly(char, "[")
    while True:
        char = yield from blank(char)
        char = yield from call_object(reader, char, arguments_needed)
        char = yield from blank(char)
        if char == "]":
            return (yield)
        char = yield from exactly(char, ",")


def _arguments(char: str) -> Generator[None, str, tuple[str, str]]:
    """Arguments as an object, as null, or as a string that has the object's JSON."""
    raw: list[str] = []
    if char is END or char not in '{"n':
        raise Unfit(char)
    char = yield from json_value(char, raw.append)
    written: Any = "".join(raw)
    if written.startswith("{"):
        return written, char
    try:
        value = json.loads(written, strict=False)
        if value is None:
            return "{}", char
        if isinstance(json.loads(value), dict):
            return value, char
    except (ValueError, RecursionError):
        pass
    raise Unfit(char)
