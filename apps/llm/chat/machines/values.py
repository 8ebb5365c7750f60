"""Machines that parse the elements of calls: words, and JSON as models write it.

Each is given the first character of its part and returns the first one after it, or raises NotACall.
"""

import json
from collections.abc import Callable, Generator
from typing import Any

from apps.llm.chat.reader import END, AnswerReader, Machine, NotACall

Emit = Callable[[str], None]
ARGUMENTS = ("arguments", "parameters")
"""Keys of a call's arguments."""
CONTROLS = {char: json.dumps(char)[1:-1] for char in map(chr, range(32))}
"""Control characters -> their JSON escapes. Models often leave them unescaped, above all line breaks in code."""


def blank(char: str) -> Machine:
    """Optional white space."""
    while char.isspace():
        char = yield
    return char


def exactly(char: str, text: str) -> Machine:
    for expected in text:
        if char != expected:
            raise NotACall(char)
        char = yield
    return char


def closing(char: str, text: str) -> Machine:
    """The end of a call, after optional white space; the answer may be cut short in it."""
    char = yield from blank(char)
    for expected in text:
        if char is END:
            break
        if char != expected:
            raise NotACall(char)
        char = yield
    return char


def word(char: str) -> Generator[None, str, tuple[str, str]]:
    """An unquoted word, such as a tool's name: (the word, the character after it)."""
    letters = []
    while char.isalnum() or (char is not END and char in "_-."):
        letters.append(char)
        char = yield
    return "".join(letters), char


def string(char: str) -> Generator[None, str, tuple[str, str]]:
    """A JSON string: (its text, the character after it)."""
    raw: list[str] = []
    if char != '"':
        raise NotACall(char)
    char = yield from json_value(char, raw.append)
    try:
        text = json.loads("".join(raw), strict=False)
    except ValueError:
        raise NotACall(char) from None
    return text, char


def json_value(char: str, emit: Emit) -> Machine:
    """A JSON value, verbatim except that control characters in strings are escaped. Only brackets and quotes matter."""
    depth = 0
    while char is not END:
        if char == '"':
            emit(char)
            char = yield
            while char not in ('"', END):
                emit(CONTROLS.get(char, char))
                if char == "\\":
                    char = yield
                    if char is END:
                        return END
                    emit(char)
                char = yield
            if char is END:
                return END
            emit(char)
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
                emit(char)
                return (yield)
        elif depth == 0 and (char == "," or char.isspace()):
            return char
        emit(char)
        char = yield
    return END


def call_object(reader: AnswerReader, char: str, arguments_needed: bool = False) -> Machine:
    """`{"name": ..., "arguments": {...}}`, with its keys in any order; other keys are ignored.

    Args:
        arguments_needed: whether an object without arguments is not a call.
    """
    name: str | None = None
    held: str | None = None  # arguments that came before the name
    emitted = False

    def emit(arguments: str) -> None:
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
                raise NotACall(char)
            if held is not None:
                emit(held)
                emitted = True
        elif key in ARGUMENTS and held is None and not emitted:
            if char == "{" and name is not None:
                reader.begin(name)
                char = yield from json_value(char, reader.piece)
                reader.end()
                emitted = True
            else:
                held, char = yield from _arguments(char)
                if name is not None:
                    emit(held)
                    emitted = True
        else:
            char = yield from json_value(char, lambda _: None)
        char = yield from blank(char)
        if char == ",":
            char = yield
            char = yield from blank(char)
        elif char != "}":
            raise NotACall(char)
    char = yield
    if not emitted:
        if name is None or arguments_needed:
            raise NotACall(char)
        emit("{}")
    return char


def call_list(reader: AnswerReader, char: str, arguments_needed: bool = False) -> Machine:
    """`[{"name": ...}, ...]`: a non-empty list of calls."""
    char = yield from exactly(char, "[")
    while True:
        char = yield from blank(char)
        char = yield from call_object(reader, char, arguments_needed)
        char = yield from blank(char)
        if char == "]":
            return (yield)
        char = yield from exactly(char, ",")


def _arguments(char: str) -> Generator[None, str, tuple[str, str]]:
    """Arguments given as an object, as null, or as a string with the object's JSON."""
    raw: list[str] = []
    if char is END or char not in '{"n':
        raise NotACall(char)
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
    raise NotACall(char)
