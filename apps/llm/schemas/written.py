"""JSON schemas as text for llguidance, and their limits."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from apps.llm.api import Grammar, RequestError
from apps.llm.schemas.enforced import enforceable, is_loosened

Schema = Mapping[str, Any]
JSON_OPTIONS = {"whitespace_pattern": r"\n?[ ]{0,16}"}
"""Limits white space in JSON: a small model may otherwise write line breaks forever."""
MAX_SCHEMAS = 500_000
"""Most characters of a request's schemas."""
MAX_DEPTH = 100
"""Deepest nesting of a schema: llguidance reads JSON to a depth of 128."""


def schema_text(schema: Schema, rewritten: Schema | None = None) -> str:
    """A JSON schema as text, as llguidance reads it. Overrides llguidance options in the client's schema.

    Args:
        rewritten: what `enforceable` makes of it, where that is known.
    """
    lenient = {"lenient": True} if is_loosened(schema) else {}
    return json.dumps({**(rewritten or enforceable(schema)), "x-guidance": JSON_OPTIONS | lenient})


def whole_schema(text: str) -> str:
    """The grammar of an answer that follows a JSON schema and is nothing else, from `schema_text`."""
    return f'{{"grammars": [{{"json_schema": {text}}}]}}'


def schema_grammar(schema: str | Schema) -> Grammar:
    """The grammar of an answer that follows a JSON schema; see `loaded_schema` and `check_schemas`."""
    schemas = (("response_format", loaded_schema(schema)),)
    check_schemas(schemas)
    return Grammar(whole_schema(schema_text(schemas[0][1])), schemas)


def loaded_schema(schema: str | Schema) -> Schema:
    """A JSON schema given as JSON text or as an object; an empty one allows any JSON object.

    Raises:
        RequestError: the text is too long or not JSON, or the schema is not an object.
    """
    field = "response_format"
    loaded: Any = schema
    if isinstance(schema, str):
        if len(schema) > MAX_SCHEMAS:
            raise RequestError(field, f"{field}: the JSON schema has over {MAX_SCHEMAS:,} characters")
        try:
            loaded = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(field, f"{field}: the JSON schema is not valid JSON: {error}") from error
    if not isinstance(loaded, Mapping):
        raise RequestError(field, f"{field}: the JSON schema must be an object")
    return loaded or {"type": "object"}


def check_schemas(schemas: Iterable[tuple[str, Schema]]) -> None:
    """Check the size of a request's schemas, which are given with their fields.

    Raises:
        RequestError: they are too long together, or one is nested too deeply or cannot be written as JSON.
    """
    total = 0
    for field, schema in schemas:
        level: list[Any] = [schema]
        for _ in range(MAX_DEPTH):
            below: list[Any] = []
            for value in level:
                total += 1 + (len(value) if isinstance(value, str) else 0)
                if isinstance(value, Mapping):
                    total += sum(len(name) for name in value)
                    below += value.values()
                elif isinstance(value, list | tuple):
                    below += value
                if total + len(below) > MAX_SCHEMAS:
                    raise RequestError(field, f"{field}: the JSON schema has over {MAX_SCHEMAS:,} characters")
            level = below
        if level:
            raise RequestError(field, f"{field}: the JSON schema is nested more than {MAX_DEPTH} deep")
        try:
            json.dumps(schema)
        except (TypeError, ValueError) as error:
            raise RequestError(field, f"{field}: the JSON schema cannot be written as JSON: {error}") from error
