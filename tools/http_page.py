"""Writes docs/http-api.md from the OpenAPI schema of each application: `python -m tools.http_page`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from apps.cell.http.app import http_app as cell
from apps.llm.http.app import http_app as language_models
from apps.stable_diffusion.http.app import http_app as pictures
from tools.config_page import cell as in_cell

PATH = Path(__file__).parents[1] / "docs" / "http-api.md"
HEAD = """# HTTP API

Made from the applications' OpenAPI schemas by `python -m tools.http_page`. A running application serves its own at
`/openapi.json`, and a page to try it at `/docs`.

With API keys, each request carries `Authorization: Bearer KEY` or `x-api-key: KEY`; only `/`, `/health`, `/healthz`,
`/healthcheck` and `/metrics` are open. Bodies are limited to 32 MiB, files of batches to `batch_file_mib`. Errors have
the form of the dialect that was spoken:

| status | why |
| --- | --- |
| 400, 422 | the request cannot be answered; the message names the field |
| 401 | no key, or a wrong one |
| 403 | a cell's ACL does not allow it |
| 404 | no such model, or no such path |
| 409 | a cell: the model is published already, or the cell has admins already; a file that a batch still reads |
| 413 | the body is too large |
| 429, 503 | the queue is full, or no replica is ready: send it again after `Retry-After` seconds |
| 500 | the server failed; its log says why |
| 507 | the storage of files is full |

In Anthropic's dialect a full queue is 529.

Null means absent. OpenAI's and Anthropic's fields that are not listed here are ignored.
"""
MODEL = SimpleNamespace(name="model", created=0, tracing=None)
"""The schemas do not depend on the model."""


def schemas() -> dict[str, dict[str, Any]]:
    """Title -> OpenAPI schema of each application."""
    return {
        "Language models": language_models(MODEL).openapi(),
        "Pictures": pictures(MODEL).openapi(),
        "A cell": cell("test", None, {}).openapi(),
    }


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for title, schema in schemas().items():
        parts.append(f"## {title}\n")
        calls = [(f"`{method} {path}`", ", ".join(one["tags"]), _about(one)) for method, path, one in routes(schema)]
        parts.append(_table(("call", "dialect", ""), calls))
        for method, path, route in routes(schema):
            parts += _fields(method, path, route)
    return "\n".join(parts)


def routes(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(method, path, OpenAPI operation) in the schema's order."""
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            yield method.upper(), path, route


def bodies(route: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternative schemas of the route's body."""
    for content in route.get("requestBody", {}).get("content", {}).values():
        return content["schema"].get("anyOf", [content["schema"]])
    return []


def _about(route: Mapping[str, Any]) -> str:
    return in_cell(route.get("description", "").partition("\n\n")[0])


def _fields(method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    found = bodies(route)
    parameters = {one["name"]: one["schema"] for one in route.get("parameters", ()) if one["in"] == "query"}
    if parameters:
        needed = [one["name"] for one in route["parameters"] if one.get("required")]
        found = [{"properties": parameters, "required": needed, "title": "URL"}]
    if not any(body.get("properties") for body in found):
        return
    if found[0].get("additionalProperties") is True and path != "/sdapi/v1/options":  # a cell relays it as it is
        return
    yield f"### {method} {path}\n"
    for body in found:
        if len(found) > 1:
            yield f"{in_cell(body.get('description', body['title']))}\n"
        needed = body.get("required", ())
        rows = [
            (f"`{name}`", _type(field), _default(name in needed, field), in_cell(field.get("description", "")))
            for name, field in body["properties"].items()
        ]
        yield _table(("field", "type", "default", ""), rows)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table without its empty columns."""
    kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line[place] for place in kept)} |\n" for line in lines)


def _type(field: Mapping[str, Any]) -> str:
    choices = field.get("anyOf") or field.get("oneOf") or ()
    kinds = [_type(each) for each in choices if each != {"type": "null"}]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    kind = "file" if field.get("format") == "binary" else field.get("type", "any")
    bounds = [
        f"{sign} {field[name]:g}"
        for name, sign in (("minimum", "≥"), ("maximum", "≤"), ("minItems", "length ≥"), ("maxItems", "length ≤"))
        if name in field
    ]
    if field.get("properties"):
        bounds.append("of " + ", ".join(f"`{name}`" for name in field["properties"]))
    return " ".join([kind, *bounds])


def _default(needed: bool, field: Mapping[str, Any]) -> str:
    if needed:
        return "required"
    default = field.get("default")
    return "" if default is None else f"`{in_cell(repr(default))}`"


if __name__ == "__main__":
    PATH.write_text(page())
    print(f"wrote {PATH}")
