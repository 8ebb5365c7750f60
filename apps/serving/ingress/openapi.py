"""OpenAPI schemas for routes that read their bodies themselves: `openapi_extra=json_body(ChatBody)`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}
"""`responses` of a route that answers in one piece or, with `stream`, as server-sent events."""


def json_body(*kinds: type[BaseModel]) -> dict[str, Any]:
    """The body is JSON that one of these models validates."""
    schemas = [schema_of(kind) for kind in kinds]
    return _body("application/json", schemas[0] if len(schemas) == 1 else {"anyOf": schemas})


def json_object(fields: Mapping[str, Schema], required: Sequence[str] = (), closed: bool = True) -> dict[str, Any]:
    """The body is a JSON object of these fields; if `closed`, of no others."""
    schema = {"type": "object", "properties": dict(fields), "required": list(required)}
    return _body("application/json", schema | {"additionalProperties": not closed})


def form(kind: type[BaseModel], files: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
    """The body is multipart/form-data: the model's fields, and files."""
    schema = schema_of(kind)
    schema["properties"] |= {name: {"type": "string", "format": "binary"} for name in files}
    schema["required"] = [*schema.get("required", ()), *required]
    return _body("multipart/form-data", schema)


def query(fields: Mapping[str, Schema], required: Sequence[str] = ()) -> dict[str, Any]:
    """The parameters of a URL."""
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in fields.items()
        ]
    }


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema with all references resolved in place."""
    schema = kind.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(node: Any) -> Any:
        if isinstance(node, list):
            return [whole(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return whole(parts[node["$ref"].rsplit("/", 1)[-1]])
        return {name: whole(each) for name, each in node.items()}

    return whole(schema)


def _body(media_type: str, schema: Schema) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
