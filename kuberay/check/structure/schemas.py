"""Structure: fields that do not exist, are missing or have the wrong type, by the schemas of KubeRay's CRDs and of
Kubernetes (schemas.json, which tools/kubernetes_schemas.py makes).

`kubectl apply` refuses an unknown field, and whatever applies without strict validation (older kubectl, Helm, client
libraries, GitOps) has the API server drop it without a word.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node
from kuberay.check.reading import type_name
from kuberay.check.rules import Problem, error, meant, nearest, rule

if TYPE_CHECKING:
    from jsonschema import ValidationError

_API = "Kubernetes API server: schemas of KubeRay 1.7's CRDs and of Kubernetes 1.36"
_REFUSED = "the API server refuses it"
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
    for node, refusal in _refusals(manifest):
        if refusal.validator != "additionalProperties":
            continue
        known = refusal.schema["properties"]
        for key, child in node.fields.items():
            if key not in known and child.present and "$" not in key and "{" not in key:
                why = f"there is no field {key} here: kubectl's validation refuses it, and without that the API "
                yield error(child, why + "server drops it silently", _instead(key, known))


@rule(Manifest, "missing-field", _API)
def missing_field(manifest: Manifest) -> Iterator[Problem]:
    """Required fields are there."""
    for node, refusal in _refusals(manifest):
        for key in refusal.schema["required"] if refusal.validator == "required" else ():
            if not node[key].present:
                why = f"{key} is required and missing: the API server refuses the object"
                yield error(node[key], why, f"write {key}")


@rule(Manifest, "wrong-value", _API + "; its validation of Pods")
def wrong_value(manifest: Manifest) -> Iterator[Problem]:
    """Fields that know a few words, numbers or spellings take no other.

    Those of a RayCluster's Pod templates are stored unread. The operator makes Pods of them later, the API server
    refuses those, and the cluster waits for ever with the reason in an event.
    """
    for node, refusal in _refusals(manifest):
        value, limit = node.value, refusal.validator_value
        if refusal.validator == "enum" and value != "":
            instead = meant(str(value), limit, f"write one of {', '.join(limit)}")
            yield error(node, f"{value!r} is none of {', '.join(limit)}: {_REFUSED}", instead)
        elif refusal.validator in ("minimum", "maximum"):
            port = "maximum" in refusal.schema
            why = f"{value} is no port" if port else f"{value} is negative"
            yield error(node, f"{why}: {_REFUSED}", "write 1 to 65535" if port else f"write {limit} or more")
        elif refusal.validator == "minLength":
            yield error(node, f"is empty: {_REFUSED}", f"write {node.path[-1]}")
        elif refusal.validator == "pattern" and "examples" in refusal.schema:
            instead = meant(str(value), refusal.schema["examples"], f"write a {refusal.schema['title']}")
            yield error(node, f"{value!r} is no {refusal.schema['title']}: {_REFUSED}", instead)
        elif refusal.validator == "pattern" and "label" in refusal.schema["title"]:
            yield error(node, f"{value!r} is no label value: {_REFUSED}", f"write a {refusal.schema['title']}")


@rule(Manifest, "one-field", "Kubernetes API server: validation of Pods")
def one_field(manifest: Manifest) -> Iterator[Problem]:
    """Of fields that exclude each other one is given: a probe asks one way, a variable has one source."""
    for node, refusal in _refusals(manifest):
        if refusal.validator == "oneField":
            known = refusal.validator_value["of"]
            given = " and ".join(key for key in known if node[key].present) or "none"
            why = f"has {given} of {', '.join(known[:4])}{' ...' * (len(known) > 4)}, and one is wanted: {_REFUSED}"
            yield error(node, why, f"keep one of {given}" if " and " in given else f"write one, such as {known[0]}")


@rule(Manifest, "wrong-type", _API)
def wrong_type(manifest: Manifest) -> Iterator[Problem]:
    """Values are of their fields' types: text that looks like a number or a boolean needs quotes."""
    for node, refusal in _refusals(manifest):
        if refusal.validator == "type" or (refusal.validator == "pattern" and refusal.schema["type"] != "string"):
            yield _mistaken(node, refusal.schema)


def _mistaken(node: Node, schema: dict[str, Any]) -> Problem:
    value, kind = node.value, schema["type"]
    refused = "the API server refuses the object"
    unquoted = _is_boolean(node, value)
    if kind == "string" and (unquoted or isinstance(value, bool | int | float)):
        written = "a boolean" if unquoted or isinstance(value, bool) else f"a {type_name(value)}".replace("a i", "an i")
        shown = str(value).lower() if isinstance(value, bool) else value
        why = f"{shown} without quotes is {written}, and a string is wanted: {refused}"
        return error(node, why, f'write "{shown}", with the quotes')
    if kind == "string" and isinstance(value, dict | list):
        why = f"is a {type_name(value)} where a string is wanted: {refused}"
        return error(node, why, "write it as text, with | after the colon")
    wanted = schema.get("title") or _WANTED[kind]
    if isinstance(value, str) and kind in ("integer", "number", "boolean"):
        plain = value in ("true", "false") or value.lstrip("-").replace(".", "", 1).isdigit()
        why = f"{value!r} is a string where {wanted} is wanted: {refused}"
        return error(node, why, "take the quotes away" if plain else f"write {wanted}")
    return error(node, f"is a {type_name(value)} where {wanted} is wanted: {refused}", f"write {wanted}")


def _instead(key: str, fields: Iterable[str]) -> str:
    if near := nearest(key, fields):
        return f"write {near}"
    homes = [name for name, schema in _schemas()["$defs"].items() if key in schema.get("properties", ())]
    homes.sort(key=lambda name: (name not in ("PodSpec", "Container"), not name.startswith("Ray"), name))
    if homes:
        return f"move it: {key} is a field of {' or '.join(homes[:3])}"
    return "take it out, or look for a misspelling"


@lru_cache(maxsize=1)
def _refusals(manifest: Manifest) -> list[tuple[Node, "ValidationError"]]:
    """What jsonschema has against an object, without what is yet to be filled in; nothing where its kind is unknown."""
    kind = _schemas()["kinds"].get(f"{manifest.group}/{manifest.kind}")
    if kind is None or not isinstance(manifest.node.value, dict):
        return []
    found: dict[tuple[Any, ...], tuple[Node, ValidationError]] = {}
    for refusal in _validator(kind).iter_errors(_as_json(manifest.node, manifest.node.value)):
        node = manifest.node
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


@cache
def _validator(kind: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    known = extend(Draft202012Validator, {"oneField": _one_field})
    return known({"$ref": f"#/$defs/{kind}", "$defs": _schemas()["$defs"]})


def _one_field(validator: Any, wanted: dict[str, Any], value: Any, schema: object) -> Iterator["ValidationError"]:
    """A keyword of our own: how many of `of` may be given, one at most, and at least `least`."""
    from jsonschema import ValidationError

    if isinstance(value, dict) and not any("$" in key or "{" in key for key in value):
        given = sum(value.get(key) not in (None, "") for key in wanted["of"])
        if not wanted["least"] <= given <= 1:
            yield ValidationError("not one field")
