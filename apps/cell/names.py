"""Saxml's names, /sax/CELL/MODEL, and with an adapter /sax/CELL/MODEL:ADAPTER: what is published under them."""

import re

from apps.cell import calls
from apps.cell.errors import CellError

_PART = r"[a-z]+[a-z0-9_-]*"
CELL = re.compile(rf"/sax/({_PART})")
MODEL = re.compile(rf"/sax/({_PART})/{_PART}(:{_PART})?")


def model_name(text: object, cell: str) -> str:
    """The full name of a model of this cell, or of an adapter of one, checked. Raises CellError."""
    match = MODEL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise CellError(
            f"model {text!r} must be /sax/{cell}/NAME: lower-case letters, digits, - and _, starting with a letter; an "
            "adapter is NAME:ADAPTER, of the same"
        )
    if match[1] != cell:
        raise CellError(f"model {text!r} belongs to another cell; this one is /sax/{cell}")
    return match[0]


def check_length(name: str) -> None:
    """Raise CellError if a new model or adapter cannot have this name, because part of it is too long."""
    for part in re.split("[/:]", name):
        if len(part) > calls.LONGEST_PART:
            raise CellError(f"model: {part[:20]!r}... has {len(part)} characters; a name can have {calls.LONGEST_PART}")


def app_name(model: str) -> str:
    """Of the Serve application of a model's engines: with dots, because slashes would end up in names of log files, and
    parts of a model's name have no dots."""
    return model.strip("/").replace("/", ".")


def split(name: str) -> tuple[str, str]:
    """The model's full name and the adapter's; the latter is empty if `name` is a model's."""
    model, _, adapter = name.partition(":")
    return model, adapter


def check_cell(text: object, cell: str) -> None:
    """Raise CellError unless `text` is /sax/CELL of this cell."""
    if text != f"/sax/{cell}":
        raise CellError(f"sax_cell {text!r} is not this cell: /sax/{cell}")
