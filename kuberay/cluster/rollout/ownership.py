"""Whose a field is: server-side apply refuses to change what somebody else has set. What only looks so is settled here.

Three others write into what we apply. The operator writes a RayService back when it adds its finalizer, with defaults
spelled out, and so owns the whole list of worker groups; it decides nothing there. Kueue writes what admission brings:
`suspend`, and node selectors and tolerations of Pod templates; they stay. A person's change is never taken back.
"""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from kuberay.cluster.errors import FieldConflict
from kuberay.cluster.manifests import Manifest, labels
from kuberay.cluster.rollout.sameness import same
from ray_configs.labels import QUEUE

OPERATOR, KUEUE = "kuberay-operator", "kueue"


def disputed(manifest: Manifest, live: Manifest, conflicts: Sequence[FieldConflict]) -> list[FieldConflict]:
    """Those of the conflicts that are: the value is not the same, and a person or another program has set it.

    The manifest is one `as_admitted`: whatever else Kueue's name stands on came along with a list.
    """
    writers = (OPERATOR, KUEUE) if QUEUE in labels(live) else (OPERATOR,)
    return [
        conflict
        for conflict in conflicts
        if conflict.manager not in writers and not same(at(manifest, conflict.field), at(live, conflict.field))
    ]


def as_admitted(manifest: Manifest, live: Manifest | None) -> Manifest:
    """The manifest with what Kueue wrote into the live object: nothing else of it is for anyone to keep."""
    if live is None or QUEUE not in labels(live):
        return manifest
    kept = deepcopy(manifest)
    wanted, found = kept["spec"], live["spec"]
    for ours, theirs in ((wanted, found), (wanted.get("rayClusterConfig"), found.get("rayClusterConfig"))):
        if ours is not None and theirs is not None and "suspend" in theirs:
            ours["suspend"] = theirs["suspend"]
    admitted = dict(_templates(live))
    for name, template in _templates(kept):
        if name in admitted:
            _keep(template, admitted[name])
    return kept


def _templates(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    spec = manifest["spec"]
    if "template" in spec:
        yield "", spec["template"]
    cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or spec
    if "headGroupSpec" in cluster:
        yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster.get("workerGroupSpecs") or []:
        yield f"group {group['groupName']}", group["template"]


def _keep(ours: Manifest, theirs: Manifest) -> None:
    for part, fields in (("metadata", ("labels", "annotations")), ("spec", ("nodeSelector", "tolerations"))):
        for field in fields:
            added = (theirs.get(part) or {}).get(field)
            mine = (ours.get(part) or {}).get(field)
            if isinstance(added, dict):
                ours.setdefault(part, {})[field] = added | (mine or {})
            elif added:
                ours.setdefault(part, {})[field] = [
                    *(mine or []),
                    *(item for item in added if item not in (mine or [])),
                ]


def at(value: Any, path: str) -> Any:
    """The value at a path as the API server writes it: `spec.containers[name="a"].image`; None where there is none.

    Keys have dots of their own (`metadata.labels.app.kubernetes.io/name`): the longest that fits is meant.
    """
    path = path.lstrip(".")
    if not path:
        return value
    if isinstance(value, dict):
        for key in sorted(value, key=len, reverse=True):
            if path == key or path.startswith((f"{key}.", f"{key}[")):
                return at(value[key], path[len(key) :])
    item = re.match(r"\[(.*?)\]", path)
    if isinstance(value, list) and item is not None:
        wanted = dict(re.findall(r'(\w+)=("[^"]*"|[^,]+)', item[1]))
        for entry in value:
            if isinstance(entry, dict) and all(entry.get(key) == json.loads(text) for key, text in wanted.items()):
                return at(entry, path[item.end() :])
    return None
