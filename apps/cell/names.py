"""Saxml's names: /sax/CELL/MODEL, and the grammar of what is published under them."""

import re
from dataclasses import dataclass

from apps.cell.errors import CellError

_PART = r"[a-z]+[a-z0-9_-]*"
CELL = re.compile(rf"/sax/({_PART})")
MODEL = re.compile(rf"/sax/({_PART})/({_PART})")


@dataclass(frozen=True)
class ModelName:
    """`/sax/CELL/MODEL`; `str` gives that form again."""

    cell: str
    model: str

    def __str__(self) -> str:
        return f"/sax/{self.cell}/{self.model}"

    @classmethod
    def parse(cls, text: object, cell: str) -> "ModelName":
        """Parse the name of a model of this cell. Raises CellError."""
        match = MODEL.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise CellError(
                f"model {text!r} must be /sax/{cell}/NAME: lower-case letters, digits, - and _, starting with a letter"
            )
        if match[1] != cell:
            raise CellError(f"model {text!r} belongs to another cell; this one is /sax/{cell}")
        return cls(match[1], match[2])


def check_cell(text: object, cell: str) -> None:
    """Raise CellError unless `text` is /sax/CELL of this cell."""
    if text != f"/sax/{cell}":
        raise CellError(f"sax_cell {text!r} is not this cell: /sax/{cell}")
