"""The calls that a cell's admin answers: their answers, and their fields, with JSON schemas and how each is read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from apps.cell.errors import CellError


class Entry(TypedDict):
    """One model as listcell shows it."""

    model: str
    model_path: str
    checkpoint: str
    max_replicas: int
    active_replicas: int
    assigned_replicas: int
    state: str
    reason: str | None
    overrides: dict[str, Any]
    methods: list[str]
    acls: dict[str, str]
    admin_acl: str
    published_at: int
    replicas: list[dict[str, str]]


AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Call(Generic[AnswerT]):
    """What a front asks of the admin's process, and the type of the answer. Its fields are those of `body`, below."""

    body: Mapping[str, Any]


class ListModels(Call[list[Entry]]):
    """The model or adapter that is named, or all of them."""


class GetAcl(Call[dict[str, Any]]):
    pass


@dataclass(frozen=True)
class Change(Call[AnswerT]):
    """Answered once it is safely stored."""

    principal: str | None
    """Name of the caller's key; None where there are no keys."""


class Publish(Change[Entry]):
    pass


class Update(Change[Entry]):
    pass


class Unpublish(Change[Entry]):
    pass


class Create(Change[dict[str, str]]):
    pass


class SetAcl(Change[dict[str, str]]):
    pass


Fields = dict[str, dict[str, Any]]
"""Name -> JSON schema."""

_TEXT = {"type": "string"}
_MODEL = _TEXT | {"description": "`/sax/CELL/MODEL`"}
_MODEL_OR_ADAPTER = _TEXT | {"description": "`/sax/CELL/MODEL`, or `/sax/CELL/MODEL:ADAPTER`"}
_CELL = _TEXT | {"description": "`/sax/CELL`"}
_NAMES = _TEXT | {"description": "Names of keys, comma-separated; * or empty for everyone."}
_METHOD = _TEXT | {"description": "A model's method, such as `lm.generate`; empty for the model's admin ACL."}

MOST_REPLICAS = 10_000
LONGEST_PART = 63
"""Characters of a model's or an adapter's name: both are in the names of files and of Serve's applications."""
LONGEST_PATH, LONGEST_FILE_NAME = 4000, 255
"""Characters of a path, and bytes of each part of it: no file system takes more."""
LONGEST_ACL = 10_000
LARGEST = 2**31
"""No number in a model's config is larger."""
DEEPEST = 20
"""How deep a call's values may nest: what the admin's process can be sent has a limit."""
PUBLISH: Fields = {
    "model": _MODEL_OR_ADAPTER,
    "model_path": _TEXT
    | {"description": "A name in the registry: `lm_cloud.NAME`, `huggingface:OWNER/NAME` ...; where an adapter is."},
    "checkpoint": _TEXT | {"default": "", "description": "`None` draws random weights; empty takes the model's own."},
    "replicas": {"type": "integer", "minimum": 0, "maximum": MOST_REPLICAS, "default": 1},
    "overrides": {
        "type": "object",
        "default": {},
        "description": "Fields of LLMConfig, such as `max_batch_size`, for this model.",
    },
}
UPDATE: Fields = {name: {k: v for k, v in schema.items() if k != "default"} for name, schema in PUBLISH.items()} | {
    "model": _MODEL
}
"""Absent fields stay as they are; `model_path` may be repeated but not changed."""
ONE_MODEL: Fields = {"model": _MODEL_OR_ADAPTER}
CREATE: Fields = {
    "sax_cell": _CELL,
    "fs_root": _TEXT | {"description": "The cell's `state_uri`, or empty."},
    "admin_acl": _NAMES,
}
GET_ACL: Fields = {"model": _MODEL, "sax_cell": _CELL, "method": _METHOD}
SET_ACL: Fields = GET_ACL | {"acl": _NAMES}
ONE_CELL: Fields = {"sax_cell": _CELL}
OF_A_MODEL: Fields = {
    "model": _TEXT
    | {
        "description": "`/sax/CELL/MODEL` or `MODEL`, or an adapter of one, as `MODEL:ADAPTER`; needed where more than "
        "one model is published."
    },
    "stream": {"type": "boolean"},
}
"""Fields of a request for a published model that the front reads; the model itself reads the rest."""


def check_nesting(value: Any, left: int = DEEPEST) -> None:
    """Raises CellError if lists and objects nest deeper than DEEPEST."""
    if isinstance(value, Mapping | list):
        if not left:
            raise CellError(f"The body of the request nests deeper than {DEEPEST} lists and objects")
        for part in value.values() if isinstance(value, Mapping) else value:
            check_nesting(part, left - 1)


def check_known(body: Mapping[str, Any], fields: Fields) -> None:
    """Raises CellError for a field that the call does not have."""
    if unknown := sorted(body.keys() - fields.keys()):
        raise CellError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(fields))}")


def text_of(body: Mapping[str, Any], field: str, default: str | None = None) -> str:
    """A field that is a name or a path. Raises CellError, also if it is missing and has no default."""
    value = body.get(field, default)
    if not isinstance(value, str) or (not value and default is None):
        raise CellError(f"{field} must be a string" + ("" if field in body else "; it is missing"))
    if not value.isprintable():
        raise CellError(f"{field} has characters that no name has: {value!r:.100}")
    if len(value) > LONGEST_PATH:
        raise CellError(f"{field} has {len(value)} characters; it can have {LONGEST_PATH}")
    if any(len(part.encode()) > LONGEST_FILE_NAME for part in value.split("/")):
        raise CellError(f"{field} has a part of over {LONGEST_FILE_NAME} bytes, which no file system takes")
    return value


def replicas_of(value: Any) -> int:
    """`replicas` as a number; saxutil sends it as text. Raises CellError."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():  # as JSON Schema has it
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_REPLICAS:
        raise CellError(f"replicas must be a whole number, 0 to {MOST_REPLICAS}, not {value!r:.100}")
    return value


def overrides_of(value: Any) -> dict[str, Any]:
    """`overrides`, copied. Raises CellError for values that no config can have; the registry checks their fields."""
    if not isinstance(value, Mapping):
        raise CellError("overrides must be an object of field: value")
    for field, given in value.items():
        if isinstance(given, int | float) and not -LARGEST < given < LARGEST:  # or it is no number
            raise CellError(f"overrides: {field!r:.100} must be a number below {LARGEST}, not {given!r:.100}")
        if isinstance(given, str) and not given.isprintable():
            raise CellError(f"overrides: {field!r:.100} has characters that no value has: {given!r:.100}")
    return json.loads(json.dumps(dict(value)))
