"""What applying would change, computed by the server: with defaults and webhooks."""

import difflib
from collections.abc import Sequence
from copy import deepcopy
from hashlib import sha256
from typing import Any

from kuberay.cluster.apply import Applied, Say, rehearse, rehearse_rollouts
from kuberay.cluster.connection import Cluster
from kuberay.cluster.manifests import Manifest, without_server_fields
from kuberay.render import to_yaml


def diff(cluster: Cluster, objects: Sequence[Manifest], say: Say = lambda line: None) -> str:
    """A unified diff from the live objects to the result of applying; empty if nothing would change.

    `say` receives what would and would not be rolled out. Raises Refused as `apply` would. Values of Secrets are
    masked: the diff shows that one changes, not the value.
    """
    checked = rehearse(cluster, objects)
    steps = rehearse_rollouts(cluster, checked, say)
    changes = "".join(_changes(item) for item in checked if item.outcome != "unchanged")
    return changes + "".join(f"{step.title}: {step.words}\n" for step in steps)


def _changes(applied: Applied) -> str:
    before, after = _readable(applied.before), _readable(applied.after)
    return "".join(difflib.unified_diff(before, after, f"live/{applied.name}", f"applied/{applied.name}"))


def _readable(manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return []
    shown = without_server_fields(manifest)
    if shown.get("kind") == "Secret":
        shown = _masked(shown)
    return to_yaml([shown]).splitlines(keepends=True)


def _masked(secret: Manifest) -> Manifest:
    """Replaces values by four digits of a hash, which differ when the values do."""
    masked: dict[str, Any] = deepcopy(secret)
    for field in ("data", "stringData"):
        for key, value in (masked.get(field) or {}).items():
            masked[field][key] = f"*** ({sha256(str(value).encode()).hexdigest()[:4]})"
    return masked
