"""What every config has in common."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
)
from pydantic_core import PydanticCustomError

NO_SUCH_FIELD = "extra_forbidden"
"""Pydantic's name of the error."""
FEW = 16
"""Fields that a message may list."""


def from_text(example: str) -> BeforeValidator:
    """Parses the JSON that command lines pass for a field. The example is one, for the error's text."""

    def parsed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"must be JSON such as {example}: {error}") from None

    return BeforeValidator(parsed)


class Strict(BaseModel):
    """Refuses unknown fields, and says which was meant, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid")

    if not TYPE_CHECKING:  # type checkers derive the parameters from the fields

        def __init__(self, /, **data: Any) -> None:
            """Pydantic calls it for models inside others too, and for those read from dictionaries and JSON."""
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise _explained(error, type(self)) from None


class Config(Strict):
    """Base of all configs: frozen and strict."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


def _explained(error: ValidationError, config: type[BaseModel]) -> ValidationError:
    """The error, with its own words for fields that `config` does not have."""
    items = error.errors(include_url=False)
    if not any(_unknown(item) for item in items):
        return error
    lines: list[Any] = []
    for item in items:
        kind: Any = item["type"]
        if _unknown(item):
            said = f"{item['msg']}: {_instead(str(item['loc'][0]), config)}"
            kind = PydanticCustomError(NO_SUCH_FIELD, "{said}", {"said": said})
        elif kind == NO_SUCH_FIELD:  # of a config inside, explained already
            kind = PydanticCustomError(NO_SUCH_FIELD, "{said}", {"said": item["msg"]})
        lines.append({"type": kind, "loc": item["loc"], "input": item["input"]})
        if "ctx" in item:
            lines[-1]["ctx"] = item["ctx"]
    return ValidationError.from_exception_data(error.title, lines)


def _unknown(item: Any) -> bool:
    return item["type"] == NO_SUCH_FIELD and len(item["loc"]) == 1


def _instead(field: str, config: type[BaseModel]) -> str:
    """What to write for a field that the config does not have."""
    if near := nearest(field, config.model_fields):
        return f"did you mean {near}?"
    if issubclass(config, Config):
        if homes := sorted({kind.__name__ for kind in _last(Config) if field in kind.model_fields}):
            return f"it is a field of {', '.join(homes)}"
        if len(config.model_fields) > FEW:
            return f"docs/configs.md lists those of {config.__name__}"
    return f"there are {', '.join(config.model_fields) or 'none'}"


def _last(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The classes below it that nothing inherits."""
    subs = kind.__subclasses__()
    for sub in subs:
        yield from _last(sub)
    if not subs:
        yield kind


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most similar to the word; None if none is close."""
    from difflib import get_close_matches

    lower = {choice.lower().replace("-", "_"): choice for choice in choices}
    found = get_close_matches(word.lower().replace("-", "_"), lower, n=1, cutoff=0.72)
    return lower[found[0]] if found else None


class Kind(Config):
    """A member of a discriminated union. `kind` is dumped even where defaults are left out."""

    kind: str

    @model_serializer(mode="wrap")
    def _with_kind(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **dump(self)}


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A Kubernetes name that is also a DNS label: lower-case letters, digits and dashes, starting with a letter."""
