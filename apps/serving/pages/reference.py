"""An OpenAPI schema as a page: each call, and the fields of its bodies."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]


def reference(schema: Schema) -> str:
    """HTML of all calls, by their tags."""
    types = schema.get("components", {}).get("schemas", {})
    groups: dict[str, list[str]] = {}
    for path, calls in schema["paths"].items():
        for verb, call in calls.items():
            tag = (call.get("tags") or ["Server"])[0]
            groups.setdefault(tag, []).append(_call(verb.upper(), path, call, types))
    return "".join(f"<h2>{escape(tag)}</h2>{''.join(calls)}" for tag, calls in groups.items())


def _call(verb: str, path: str, call: Schema, types: Schema) -> str:
    about = escape(call.get("description", "").partition("\n\n")[0])
    head = f"<summary><span class=verb>{verb}</span> <code>{escape(path)}</code> {about}</summary>"
    rows = "".join(_rows(call, types))
    table = f"<table><tr><th>field<th>type<th>default<th></tr>{rows}</table>" if rows else "<p>No fields.</p>"
    return f"<details>{head}{table}</details>"


def _rows(call: Schema, types: Schema) -> Iterator[str]:
    for parameter in call.get("parameters", ()):
        yield _row(parameter["name"], parameter.get("schema", {}), bool(parameter.get("required")), parameter)
    for content in call.get("requestBody", {}).get("content", {}).values():
        for body in _bodies(content.get("schema", {}), types):
            needed = body.get("required", ())
            for name, field in body.get("properties", {}).items():
                yield _row(name, field, name in needed, field)


def _bodies(schema: Schema, types: Schema) -> Iterator[Schema]:
    """The objects that a body may be."""
    for choice in schema.get("anyOf") or schema.get("oneOf") or (schema,):
        name = choice.get("$ref", "").rpartition("/")[2]
        yield types.get(name) or choice.get("$defs", {}).get(name) or choice


def _row(name: str, field: Schema, needed: bool, about: Schema) -> str:
    default = "required" if needed else "" if field.get("default") is None else repr(field["default"])
    text = about.get("description", "")
    cells = (f"<code>{escape(name)}</code>", escape(_type(field)), escape(default), escape(text))
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"


def _type(field: Schema) -> str:
    if choices := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices if choice.get("type") != "null"))
    if "enum" in field:
        return " or ".join(map(repr, field["enum"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    kind = field.get("type", "any")
    return f"list of {_type(field.get('items', {}))}" if kind == "array" else str(kind)
