"""Server-side apply as the API server does it: who owns which field, what conflicts, what goes when it is left out.

A field set is a set of paths; a step of a path is a field's name, or, within a list that merges by key, the key of an
item as a tuple of pairs. A list without keys belongs to its owner as a whole.
"""

import json
from copy import deepcopy
from typing import Any

Path = tuple[Any, ...]
KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
}
UNOWNED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def keys_of(field: Any, items: Any) -> tuple[str, ...] | None:
    """How items of this list are told apart; None for lists that are one value."""
    if field == "ports" and items and isinstance(items[0], dict):
        return ("containerPort",) if "containerPort" in items[0] else ("port",)
    return KEYS.get(field)


def fields(value: Any, path: Path = ()) -> set[Path]:
    """The paths of all leaves."""
    if isinstance(value, dict) and value:
        return {leaf for key, item in value.items() for leaf in fields(item, (*path, key))} - UNOWNED
    if isinstance(value, list) and value and (keys := keys_of(path[-1], value)):
        return {leaf for item in value for leaf in fields(item, (*path, tuple((key, item.get(key)) for key in keys)))}
    return {path}


def read(value: Any, path: Path) -> Any:
    """The value at a path, or None."""
    for step in path:
        if isinstance(step, tuple):
            value = next((item for item in value or [] if all(item.get(key) == want for key, want in step)), None)
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def write(target: Any, path: Path, value: Any) -> None:
    for here, after in zip(path, [*path[1:], None]):
        if isinstance(here, tuple):
            item = read(target, (here,))
            if item is None:
                item = dict(here)
                target.append(item)
            target = item
        elif after is None:
            target[here] = deepcopy(value)
        else:
            if not isinstance(target.get(here), list if isinstance(after, tuple) else dict):
                target[here] = [] if isinstance(after, tuple) else {}
            target = target[here]


def erase(target: Any, path: Path) -> None:
    """Removes a leaf, and what it leaves empty above it."""
    parent = read(target, path[:-1])
    if isinstance(path[-1], tuple):
        if parent and (item := read(parent, path[-1:])) is not None:
            parent.remove(item)
    elif isinstance(parent, dict):
        parent.pop(path[-1], None)
    left = read(target, path[:-1])
    if len(path) > 1 and (not left or (isinstance(path[-2], tuple) and set(left) <= {key for key, _ in path[-2]})):
        erase(target, path[:-1])


def dotted(path: Path) -> str:
    """As conflicts name it: .spec.containers[name="ray"].image"""
    words = ""
    for step in path:
        if isinstance(step, tuple):
            words += "[" + ",".join(f"{key}={json.dumps(want)}" for key, want in step) + "]"
        else:
            words += f".{step}"
    return words


def to_fields_v1(paths: set[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths, key=dotted):
        node = tree
        for step in path:
            node = node.setdefault("k:" + json.dumps(dict(step)) if isinstance(step, tuple) else f"f:{step}", {})
    return tree


def from_fields_v1(tree: dict[str, Any], path: Path = ()) -> set[Path]:
    if not tree:
        return {path} if path else set()
    found: set[Path] = set()
    for key, below in tree.items():
        step = tuple(json.loads(key[2:]).items()) if key.startswith("k:") else key[2:]
        found |= from_fields_v1(below, (*path, step))
    return found


class ApplyConflict(Exception):
    def __init__(self, causes: list[tuple[str, str]]):
        self.causes = causes  # (message, field)


def apply(live: dict[str, Any], wanted: dict[str, Any], manager: str, force: bool, now: str) -> dict[str, Any]:
    """The object after `manager` applies `wanted` to `live`; raises ApplyConflict."""
    merged = deepcopy(live)
    entries = merged["metadata"].pop("managedFields", [])
    owned = {(entry["manager"], entry["operation"], entry.get("subresource", "")): entry for entry in entries}
    me = (manager, "Apply", "")
    before = from_fields_v1(owned[me]["fieldsV1"]) if me in owned else set()
    asked = fields(wanted)
    causes: list[tuple[str, str]] = []
    for other, entry in owned.items():
        theirs = from_fields_v1(entry["fieldsV1"])
        clash = {path for path in asked & theirs if other != me and read(live, path) != read(wanted, path)}
        if clash and force:
            entry["fieldsV1"] = to_fields_v1(theirs - clash)
        elif clash:
            causes += [
                (f'conflict with "{other[0]}" using {live["apiVersion"]}', dotted(path))
                for path in sorted(clash, key=dotted)
            ]
    if causes:
        raise ApplyConflict(causes)
    for path in asked:
        write(merged, path, read(wanted, path))
    elsewhere = {path for key, entry in owned.items() if key != me for path in from_fields_v1(entry["fieldsV1"])}
    for path in before - asked - elsewhere:
        erase(merged, path)
    owned[me] = entry_for(manager, "Apply", live["apiVersion"], asked, owned.get(me, {}).get("time", now))
    merged["metadata"]["managedFields"] = list(owned.values())
    return merged


def update(live: dict[str, Any], wanted: dict[str, Any], manager: str, subresource: str, now: str) -> dict[str, Any]:
    """The object after a plain write: `manager` owns what it changed, and nobody else does any more."""
    merged = deepcopy(wanted)
    changed = {path for path in fields(without_metadata(wanted)) if read(live, path) != read(wanted, path)}
    owned = {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): deepcopy(entry)
        for entry in live["metadata"].get("managedFields", [])
    }
    for entry in owned.values():
        entry["fieldsV1"] = to_fields_v1(from_fields_v1(entry["fieldsV1"]) - changed)
    me = (manager, "Update", subresource)
    mine = changed | (from_fields_v1(owned[me]["fieldsV1"]) if me in owned else set())
    if changed:
        owned[me] = entry_for(manager, "Update", live["apiVersion"], mine, now, subresource)
    merged["metadata"]["managedFields"] = list(owned.values())
    return merged


def without_metadata(manifest: dict[str, Any]) -> dict[str, Any]:
    """Only labels and annotations of the metadata are anybody's fields."""
    kept = {key: manifest["metadata"][key] for key in ("labels", "annotations") if key in manifest["metadata"]}
    rest = {key: value for key, value in manifest.items() if key != "metadata"}
    return rest | ({"metadata": kept} if kept else {})


def entry_for(
    manager: str, operation: str, api_version: str, paths: set[Path], time: str, subresource: str = ""
) -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields_v1(paths),
    }
    return entry | ({"subresource": subresource} if subresource else {})
