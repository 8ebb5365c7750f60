"""JSON in request bodies: bounded before it is parsed, because parsing holds up every other request of the process.

Parsing is done in Rust, with the GIL held to its end, so a thread would not help. Text is cheap: 32 MiB of it take a
tenth of a second. Values are not: a million small objects take a second. So a body may have only so many, and nothing
written in Python looks at each: the parser itself refuses half a character and deep nesting.
"""

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from apps.serving.ingress.bodies import BodyTooLarge, read_body

B = TypeVar("B", bound=BaseModel)

MOST_OBJECTS = 2**17
"""Lists and objects of one body."""
MOST_VALUES = 2**20
"""Values of its lists and objects; enough for a million token ids."""
DEEPEST = 200
SMALL = MOST_OBJECTS
"""A body with fewer bytes cannot have too many values."""
BLOCK = 2**18
"""Bytes that are looked at at a time; of a larger body, in a thread."""
MOST_NAMED = 2**14
"""Values that are looked through for the one that a parser refused, to name it."""


class BadJSON(ValueError):
    """The body is not JSON, or cannot be taken. The message says why.

    Args:
        field: the path of the value that is wrong, if one is.
    """

    def __init__(self, message: str, field: str | None = None, code: str = "invalid_json"):
        super().__init__(message)
        self.field, self.code = field, code


async def read_json(request: Request) -> bytes:
    """Read a body that should be JSON, without a byte order mark. Raises BodyTooLarge, also for too many values."""
    body = (await read_body(request)).removeprefix(BOM_UTF8)
    if len(body) > BLOCK:
        await asyncio.to_thread(check_values, body)
    else:
        check_values(body)
    return body


def check_values(body: bytes) -> None:
    """Raises BodyTooLarge if there are too many values in a JSON text."""
    if len(body) <= SMALL:
        return
    objects, values = count_values(body)
    if objects > MOST_OBJECTS or values > MOST_VALUES:
        raise BodyTooLarge(
            f"The request body has {objects} lists and objects with {values} values; the most are {MOST_OBJECTS} "
            f"and {MOST_VALUES}."
        )


def count_values(body: bytes) -> tuple[int, int]:
    """Lists and objects of a JSON text, and about how many values they have. By numpy, which releases the GIL."""
    objects = values = 0
    within = escaped = False  # of the next block: it begins in a string; its first byte is escaped
    for start in range(0, len(body), BLOCK):
        block = np.frombuffer(body, np.uint8, min(BLOCK, len(body) - start), start)
        quotes = block == ord('"')
        if escaped:
            quotes[0] = False
        slashes = np.flatnonzero(block == ord("\\"))
        if slashes.size:  # within a run of backslashes, every second one is escaped itself
            begins = np.where(np.diff(slashes, prepend=-2) != 1, slashes, -1)
            if escaped:
                begins[slashes == 0] = -1
            escaping = slashes[(slashes - np.maximum.accumulate(begins)) % 2 == 0]
            quotes[escaping[escaping < len(block) - 1] + 1] = False
            escaped = bool(escaping.size) and escaping[-1] == len(block) - 1
        else:
            escaped = False
        inside = np.logical_xor.accumulate(quotes) ^ within
        within = bool(inside[-1])
        outside = block[~inside]
        objects += int(np.count_nonzero((outside == ord("[")) | (outside == ord("{"))))
        values += int(np.count_nonzero((outside == ord(",")) | (outside == ord(":"))))
    return objects, values


def parsed_object(body: bytes) -> dict[str, Any]:
    """The object that a body is. Raises BadJSON; numbers, nesting and texts are those that can be passed on."""
    try:
        found = from_json(body, cache_strings="none")  # a cache costs more than it saves where all texts differ
    except ValueError as error:
        raise unread(body, str(error)) from None
    if not isinstance(found, dict):
        raise BadJSON("The body of the request must be a JSON object.", None, "invalid_type")
    return found


def validated(kind: type[B], body: bytes) -> B:
    """The body as a model. Raises BadJSON if it cannot be read, ValidationError if it is another body."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > 1 or (first := error.errors(include_input=False)[0])["type"] != "json_invalid":
            raise
        raise unread(body, first["msg"].removeprefix("Invalid JSON: ")) from None


def unread(body: bytes, said: str) -> BadJSON:
    """Why a parser cannot read a body, in words that say what to change.

    Args:
        said: the parser's own words.
    """
    if "recursion" in said:
        return BadJSON(f"The body of the request is JSON nested too deeply: at most {DEEPEST} lists and objects.")
    if "out of range" in said:
        return BadJSON("The body of the request has a number of more than 4300 digits.", None, "invalid_value")
    if (problem := _half(body)) is not None:
        return problem
    if "surrogate" in said:
        message = f"The body of the request has half of a character, a {said}: send both halves of a pair, or neither"
        return BadJSON(message, None, "invalid_value")
    return BadJSON(f"The body of the request is not valid JSON: {said}")


def _half(body: bytes) -> BadJSON | None:
    """Which of the first values of a short body has half a character, which other parsers than Python's refuse."""
    if len(body) > BLOCK:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for path, part in islice(_walk(value), MOST_NAMED):
        if isinstance(part, str) and not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError as error:
                half = f"\\u{ord(part[error.start]):04x}"
                field = _named(path)
                message = f"{field} has half of a character, {half}: send both halves of a surrogate pair, or neither"
                return BadJSON(message, field, "invalid_value")
    return None


Path = tuple["Path", str | int] | None
"""Where a value is: the path of what it is in, and its key or index there. None: it is the whole."""


def _walk(value: Any) -> Iterator[tuple[Path, Any]]:
    """The value, and every text, list, object and key within it, with their paths."""
    left: list[tuple[Path, Any]] = [(None, value)]
    while left:
        path, part = left.pop()
        yield path, part
        if isinstance(part, dict):
            left += [((path, "a key"), key) for key in part if not key.isascii()]
            left += [((path, key), each) for key, each in part.items() if isinstance(each, str | dict | list)]
        elif isinstance(part, list):
            left += [((path, i), each) for i, each in enumerate(part) if isinstance(each, str | dict | list)]


def _named(path: Path) -> str:
    """The path as errors name a field: `messages[0].content`."""
    named = ""
    while path is not None:
        path, part = path
        named = (f"[{part}]" if isinstance(part, int) else f".{part}") + named
    return named.removeprefix(".").encode(errors="replace").decode() or "the body"
