"""Structure: fields that do not exist, are missing or have the wrong type, by the schemas of KubeRay's CRDs, of
Kubernetes and of Ray Serve (schemas.json, which tools/kubernetes_schemas.py makes).

`kubectl apply` refuses an unknown field, and whatever applies without strict validation (older kubectl, Helm, client
libraries, GitOps) has the API server drop it without a word.
"""

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node
from kuberay.check.reading import type_name
from kuberay.check.rules import Problem, error, meant, nearest, rule
from kuberay.check.serve_documents import ServeConfig

if TYPE_CHECKING:
    from jsonschema import ValidationError

_API = "Kubernetes API server: schemas of KubeRay 1.7's CRDs and of Kubernetes 1.36"
_BOTH = _API + "; Ray Serve 2.60: ServeDeploySchema"
_YAML_1_1_BOOLEANS = frozenset(
    word for lower in ("y", "yes", "n", "no", "on", "off") for word in (lower, lower.title(), lower.upper())
)
"""Words that kubectl's YAML reads as true and false, and YAML 1.2 as strings."""
_WANTED = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}


@rule(Manifest, "unknown-field", _API)
def unknown_field(manifest: Manifest) -> Iterator[Problem]:
    """Every field exists: kubectl refuses one that does not, and the API server drops it silently otherwise."""
    for key, child, schema in unknown(manifest):
        why = f"there is no field {key} here: kubectl's validation refuses it, and without that the API server drops it"
        near = nearest(key, schema["properties"])
        yield error(child, f"{why} silently", f"write {near}" if near else _elsewhere(key))


def unknown(subject: Manifest | ServeConfig) -> Iterator[tuple[str, Node, dict[str, Any]]]:
    """Fields that their type does not have, but for templates: name, value and the schema of the type."""
    for node, refusal in refusals(subject):
        for key, child in node.fields.items() if refusal.validator == "additionalProperties" else ():
            if key not in refusal.schema["properties"] and child.present and "$" not in key and "{" not in key:
                yield key, child, refusal.schema


def _elsewhere(key: str) -> str:
    homes = [name for name, schema in types().items() if key in schema.get("properties", ())]
    homes.sort(key=lambda name: (name not in ("PodSpec", "Container"), not name.startswith("Ray"), name))
    where = f"move it: {key} is a field of {' or '.join(homes[:3])}"
    return where if homes else "take it out, or look for a misspelling"


@rule(Manifest | ServeConfig, "missing-field", _BOTH)
def missing_field(subject: Manifest | ServeConfig) -> Iterator[Problem]:
    """Required fields are there."""
    for node, refusal in refusals(subject):
        for key in refusal.schema["required"] if refusal.validator == "required" else ():
            if not node[key].present:
                yield error(node[key], f"{key} is required and missing: {subject.refused}", f"write {key}")


@rule(Manifest | ServeConfig, "wrong-value", _BOTH + "; its validation of Pods")
def wrong_value(subject: Manifest | ServeConfig) -> Iterator[Problem]:
    """Fields that know a few words, numbers or spellings take no other.

    Those of a RayCluster's Pod templates are stored unread. The operator makes Pods of them later, the API server
    refuses those, and the cluster waits for ever with the reason in an event.
    """
    for node, refusal in refusals(subject):
        value, limit, schema = node.value, refusal.validator_value, refusal.schema
        match refusal.validator:
            case "enum" if value != "":
                known = ", ".join(limit)
                why, instead = f"{value!r} is none of {known}", meant(str(value), limit, f"write one of {known}")
            case "minimum" | "maximum" if "maximum" in schema:
                why, instead = f"{value} is no port", "write 1 to 65535"
            case "minimum":
                why, instead = f"{value} is negative", f"write {limit} or more"
            case "minLength":
                why, instead = "is empty", f"write {node.path[-1]}"
            case "pattern" if schema["type"] == "string":
                why = f"{value!r} is no {schema['title'].partition(':')[0]}"
                instead = meant(str(value), schema.get("examples", ()), f"write a {schema['title']}")
            case _:
                continue
        yield error(node, f"{why}: {subject.refused}", instead)


@rule(Manifest | ServeConfig, "wrong-type", _BOTH)
def wrong_type(subject: Manifest | ServeConfig) -> Iterator[Problem]:
    """Values are of their fields' types: text that looks like a number or a boolean needs quotes."""
    for node, refusal in refusals(subject):
        if refusal.validator == "type" or (refusal.validator == "pattern" and refusal.schema["type"] != "string"):
            is_a, instead = _mistaken(node, refusal.schema)
            yield error(node, f"{is_a} is wanted: {subject.refused}", instead)


def _mistaken(node: Node, schema: dict[str, Any]) -> tuple[str, str]:
    """What a value is and what is wanted, and what to write."""
    value, kind, a = node.value, schema["type"], f"a {type_name(node.value)}".replace("a i", "an i")
    wanted = schema.get("title") or _WANTED[kind]
    if kind == "string" and isinstance(value, dict | list):
        return f"is {a} where a string", "write it as text, with | after the colon"
    if kind == "string":
        shown = str(value).lower() if isinstance(value, bool) else value
        a = "a boolean" if _is_boolean(node, value) else a
        return f"{shown} without quotes is {a}, and a string", f'write "{shown}", with the quotes'
    if isinstance(value, str) and kind in ("integer", "number", "boolean"):
        plain = value in ("true", "false") or value.lstrip("-").replace(".", "", 1).isdigit()
        return f"{value!r} is a string where {wanted}", "take the quotes away" if plain else f"write {wanted}"
    return f"is {a} where {wanted}", f"write {wanted}"


@lru_cache(maxsize=1)
def refusals(subject: Manifest | ServeConfig) -> list[tuple[Node, "ValidationError"]]:
    """What jsonschema has against an object, without what is yet to be filled in; nothing where its kind is unknown."""
    kind = _schemas()["kinds"].get(subject.schema)
    if kind is None or not isinstance(subject.node.value, dict):
        return []
    found: dict[tuple[Any, ...], tuple[Node, ValidationError]] = {}
    for refusal in _validator(kind).iter_errors(_as_json(subject.node, subject.node.value)):
        node = subject.node
        for key in refusal.absolute_path:
            node = node[key] if isinstance(key, str) else list(node)[key]
        if node.present and not node.placeholder:
            found.setdefault((*refusal.absolute_path, refusal.validator), (node, refusal))
    return list(found.values())


def _as_json(node: Node, value: Any) -> Any:
    """What the API server is sent: null is nothing, and kubectl reads `on` as true."""
    if isinstance(value, dict):
        if any(not isinstance(key, str | int | float | None) for key in value):
            return "{{ }}"  # an unquoted template, which is a mapping by its looks
        return {
            key: _as_json(node, child) for key, child in value.items() if isinstance(key, str) and child is not None
        }
    if isinstance(value, list):
        return [_as_json(node, child) for child in value]
    return True if _is_boolean(node, value) else value


def _is_boolean(node: Node, value: Any) -> bool:
    """Whether text without quotes, which a file alone can have, is a boolean to kubectl."""
    return node.file is not None and type(value) is str and value in _YAML_1_1_BOOLEANS


@cache
def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "schemas.json").read_text())
    return found


def types() -> dict[str, Any]:
    """Schemas of all types by name. Those of Ray Serve have a title, as a message would call them."""
    found: dict[str, Any] = _schemas()["$defs"]
    return found


@cache
def _validator(kind: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": types()})
