"""Structure: fields that do not exist, are missing or have the wrong type.

KubeRay's CRDs have structural schemas: `kubectl apply` refuses an unknown field, and whatever applies without strict
validation (older kubectl, Helm, client libraries, GitOps) has the API server drop it without a word. One walk serves
the CRDs' schemas and the table of field names that stands in for them.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from kuberay.check.findings import Finding
from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node, quantity
from kuberay.check.reading import type_name
from kuberay.check.rules import Problem, error, nearest
from kuberay.check.structure.field_tables import all_fields_of, fields_of, known_type, types_with

_TABLED = {
    "ray.io": ("RayService", "RayCluster", "RayJob", "RayCronJob"),
    "jobset.x-k8s.io": ("JobSet",),
    "batch": ("Job", "CronJob"),
    "apps": ("Deployment", "StatefulSet"),
    "": ("Pod", "Service"),
}
_YAML_1_1_BOOLEANS = frozenset(
    word for lower in ("y", "yes", "n", "no", "on", "off") for word in (lower, lower.title(), lower.upper())
)
"""Words that kubectl's YAML reads as true and false, and YAML 1.2 as strings."""


@dataclass(frozen=True)
class Shape:
    """What a value has to look like."""

    kind: str
    """`object`, `map`, `list`, `str`, `int`, `num`, `bool`, `intstr`, `quantity` or `any`."""
    fields: dict[str, Callable[[], "Shape"]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    item: Callable[[], "Shape"] | None = None
    """Of a list or a map."""
    choices: tuple[str, ...] = ()
    open: bool = False
    """Whether unknown fields are kept."""
    more: Callable[[], dict[str, Callable[[], "Shape"]] | None] | None = None
    """Fields beyond `fields`, asked for when one is not among them; None: not all are known."""


def structural_findings(manifest: Manifest, crds: Path | None) -> list[Finding]:
    """What the API server would say about the structure of an object, where its kind is known."""
    node = manifest.node
    if not isinstance(node.value, dict) or manifest.kind not in _TABLED.get(manifest.group, ()):
        return []
    shape = _crd(crds, manifest.kind) if crds and manifest.group == "ray.io" else None
    return [
        Finding(name, p.severity, p.node.where, p.why, p.instead, p.node.line, p.node.document.file)
        for name, p in _walk(node, shape or _tabled(manifest.kind))
    ]


def _walk(node: Node, shape: Shape) -> Iterator[tuple[str, Problem]]:
    if not node.present or node.placeholder or shape.kind == "any":
        return
    wrong = _wrong_type(node, shape)
    if wrong is not None:
        yield "wrong-type", wrong
    elif shape.choices and node.value not in shape.choices:
        near = nearest(str(node.value), shape.choices)
        yield (
            "wrong-value",
            error(
                node,
                f"{node.value!r} is none of {', '.join(shape.choices)}: the API server refuses it",
                f"write {near or ' or '.join(shape.choices)}",
            ),
        )
    elif shape.kind == "list" and shape.item:
        for child in node:
            yield from _walk(child, shape.item())
    elif shape.kind == "map" and shape.item:
        for child in node.fields.values():
            yield from _walk(child, shape.item())
    elif shape.kind == "object":
        yield from _walk_object(node, shape)


def _walk_object(node: Node, shape: Shape) -> Iterator[tuple[str, Problem]]:
    fields: dict[str, Callable[[], Shape]] | None = shape.fields
    if shape.more and any(key not in shape.fields for key in node.fields):
        fields = shape.more()
    for key, child in node.fields.items():
        known = (fields or shape.fields).get(key)
        if known is not None:
            yield from _walk(child, known())
        elif fields is not None and not shape.open and child.present and "$" not in key and "{" not in key:
            yield (
                "unknown-field",
                error(
                    child,
                    f"there is no field {key} here: kubectl's validation refuses it, and without that the API server "
                    "drops it silently",
                    _instead(key, list(fields)),
                ),
            )
    for key in sorted(shape.required):
        if not node[key].present:
            yield (
                "missing-field",
                error(node[key], f"{key} is required and missing: the API server refuses the object", f"write {key}"),
            )


def _instead(key: str, fields: list[str]) -> str:
    near = nearest(key, fields)
    if near:
        return f"write {near}"
    homes = types_with(key)
    if homes:
        return f"move it: {key} is a field of {' or '.join(homes[:3])}"
    return "take it out, or look for a misspelling"


def _wrong_type(node: Node, shape: Shape) -> Problem | None:
    value = node.value
    is_bool, is_int = isinstance(value, bool), isinstance(value, int) and not isinstance(value, bool)
    is_str = isinstance(value, str)
    fits = {
        "object": isinstance(value, dict),
        "map": isinstance(value, dict),
        "list": isinstance(value, list),
        "str": is_str,
        "int": is_int,
        "num": is_int or isinstance(value, float),
        "bool": is_bool,
        "intstr": is_int or is_str,
        "quantity": not is_bool and quantity(node) is not None,
    }[shape.kind]
    wanted = {
        "object": "a mapping",
        "map": "a mapping",
        "list": "a list",
        "str": "a string",
        "int": "an integer",
        "num": "a number",
        "bool": "true or false",
        "intstr": "an integer or a string",
        "quantity": "a quantity such as 4 or 16Gi",
    }[shape.kind]
    unquoted = node.document.file is not None and type(value) is str and value in _YAML_1_1_BOOLEANS
    if fits and not (shape.kind == "str" and unquoted):
        return None
    scalar = is_bool or is_int or isinstance(value, float) or unquoted
    if shape.kind == "str" and scalar:
        written = "a boolean" if unquoted or is_bool else f"a {type_name(value)}".replace("a i", "an i")
        shown = str(value).lower() if is_bool else value
        return error(
            node,
            f"{shown} without quotes is {written}, and a string is wanted: the API server refuses the object",
            f'write "{shown}", with the quotes',
        )
    if shape.kind == "str" and isinstance(value, dict | list):
        return error(
            node,
            f"is a {type_name(value)} where a string is wanted: the API server refuses the object",
            "write it as text, with | after the colon",
        )
    if is_str and shape.kind in ("int", "num", "bool"):
        return error(
            node,
            f"{value!r} is a string where {wanted} is wanted: the API server refuses the object",
            "take the quotes away" if _plain(value) else f"write {wanted}",
        )
    return error(
        node, f"is a {type_name(value)} where {wanted} is wanted: the API server refuses the object", f"write {wanted}"
    )


def _plain(text: str) -> bool:
    return text in ("true", "false") or text.lstrip("-").replace(".", "", 1).isdigit()


# Shapes from the table of field names.


@cache
def _tabled(name: str) -> Shape:
    if name.startswith("["):
        return Shape("list", item=partial(_tabled, name[1:-1]))
    if "|" in name or name == "Failed":
        return Shape("str", choices=tuple(name.split("|")))
    if name in ("map", "quantities"):
        return Shape("map", item=partial(_tabled, "str" if name == "map" else "quantity"))
    if name[:1].islower():
        return Shape(name)
    if not known_type(name):
        more = all_fields_of(name)
        return Shape("any") if more is None else Shape("object", _lazily(more))
    fields = fields_of(name)
    required = frozenset(key for key, (_, needed) in fields.items() if needed)
    return Shape("object", _lazily(fields), required, more=partial(_all, name))


def _lazily(fields: dict[str, tuple[str, bool]]) -> dict[str, Callable[[], Shape]]:
    return {key: partial(_tabled, kind) for key, (kind, _) in fields.items()}


def _all(name: str) -> dict[str, Callable[[], Shape]] | None:
    fields = all_fields_of(name)
    return None if fields is None else _lazily(fields)


# Shapes from the schema of a CRD.


@cache
def _crd(folder: Path, kind: str) -> Shape | None:
    path = folder / f"{kind.lower()}s.v1.json"
    if not path.exists():
        return None
    schema = json.loads(path.read_text())
    top = _of_schema(schema.get("openAPIV3Schema", schema))
    known = {**top.fields, "status": lambda: Shape("any"), "metadata": partial(_tabled, "ObjectMeta")}
    return Shape("object", known, top.required | {"spec"})


def _of_schema(schema: dict[str, Any]) -> Shape:
    if schema.get("x-kubernetes-int-or-string"):
        return Shape("quantity" if "pattern" in schema else "intstr")
    kind = schema.get("type")
    if kind == "array":
        return Shape("list", item=partial(_of_schema, schema.get("items", {})))
    if kind in ("string", "integer", "number", "boolean"):
        words = {"string": "str", "integer": "int", "number": "num", "boolean": "bool"}
        return Shape(words[kind], choices=tuple(schema.get("enum", ())))
    if kind != "object":
        return Shape("any")
    if isinstance(more := schema.get("additionalProperties"), dict):
        return Shape("map", item=partial(_of_schema, more))
    if "properties" not in schema:
        return Shape("any")
    properties = schema["properties"]
    required = frozenset(name for name in schema.get("required", ()) if "default" not in properties.get(name, {}))
    return Shape(
        "object",
        {name: partial(_of_schema, child) for name, child in properties.items()},
        required,
        open=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
    )
