"""Accessors for manifests: title, labels, field managers, conditions."""

from copy import deepcopy
from typing import Any

Manifest = dict[str, Any]

SERVER_FIELDS = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink")


def title(manifest: Manifest) -> str:
    """The name in messages: `RayService llama3-8b`."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def without_server_fields(manifest: Manifest) -> Manifest:
    """A copy without status and the metadata that the server writes."""
    asked = deepcopy({key: value for key, value in manifest.items() if key != "status"})
    for field in SERVER_FIELDS:
        asked.get("metadata", {}).pop(field, None)
    return asked


def managers(manifest: Manifest) -> list[str]:
    """Field managers of a live object, except those that write only its status."""
    entries = manifest.get("metadata", {}).get("managedFields", [])
    return sorted({entry["manager"] for entry in entries if "manager" in entry and not entry.get("subresource")})


def labels(manifest: Manifest) -> dict[str, str]:
    return manifest["metadata"].get("labels") or {}


def annotations(manifest: Manifest) -> dict[str, str]:
    return manifest["metadata"].get("annotations") or {}


def condition(manifest: Manifest, kind: str) -> Manifest:
    """The status condition of this type, or an empty dict."""
    conditions = manifest.get("status", {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == kind), {})


def is_true(manifest: Manifest, kind: str) -> bool:
    return condition(manifest, kind).get("status") == "True"
