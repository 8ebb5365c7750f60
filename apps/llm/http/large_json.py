"""JSON of answers that can have a million values, for threads beside the event loop.

A JSON library holds the GIL from a value's begin to its end. So large lists are written a slice at a time.
"""

from typing import Any

from msgspec.json import encode
from starlette.responses import JSONResponse

SLICE = 256
"""Items of a list that are written in one go: a token's 20 alternatives take microseconds."""
DEPTH = 2
"""Of dictionaries around such lists."""


def in_slices(value: Any, depth: int = DEPTH) -> bytes:
    """The value's JSON. What is in lists is not looked into."""
    match value:
        case dict() if depth:
            return b"{%s}" % b",".join(encode(name) + b":" + in_slices(of, depth - 1) for name, of in value.items())
        case list() if len(value) > SLICE:
            slices = (value[i : i + SLICE] for i in range(0, len(value), SLICE))
            return b"[%s]" % b",".join(encode(items)[1:-1] for items in slices)
        case _:
            return encode(value)


class LargeJSON(JSONResponse):
    """A response whose body is written in slices."""

    def render(self, content: Any) -> bytes:
        return in_slices(content)
