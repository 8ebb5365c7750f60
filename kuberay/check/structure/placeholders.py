"""Placeholders: values still to be filled in, which no other rule checks."""

from collections.abc import Iterator

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, note, rule

_FREE_TEXT = frozenset(
    {"args", "command", "env", "annotations", "data", "stringData", "serveConfigV2", "entrypoint", "runtimeEnvYAML"}
    | {"capabilities"}
)
"""Fields whose text may contain $X or UPPER_CASE that are not placeholders."""
_GROUPS = frozenset({"", "apps", "batch", "ray.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kueue.x-k8s.io"})
"""API groups in which text that looks like a placeholder is one."""


@rule(Manifest, "placeholder", "the author of the manifest")
def placeholders(manifest: Manifest) -> Iterator[Problem]:
    """Reports in one note all values that a shell, a template or a reader has to fill in."""
    if not manifest.kind or manifest.group not in _GROUPS:
        return
    found = list(_placeholders(manifest.node))
    if found:
        shown = list(dict.fromkeys(_shown(node) for node in found))
        are = "is" if len(shown) == 1 else "are"
        why = f"{', '.join(shown)} {are} still to be filled in; nothing that depends on it was checked"
        yield note(found[0], why, "fill in the values and check again")


def _placeholders(node: Node) -> Iterator[Node]:
    if node.placeholder:
        yield node
        return
    for key, child in node.fields.items():
        if key not in _FREE_TEXT:
            yield from _placeholders(child)
    for child in node:
        yield from _placeholders(child)


def _shown(node: Node) -> str:
    return node.value if isinstance(node.value, str) else f"the template in {node.path[-1]}"
