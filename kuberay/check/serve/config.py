"""Serve configs that cannot be read, and keys that Ray Serve ignores."""

from collections.abc import Iterator

from kuberay.check.rules import Problem, error, nearest, rule, warning
from kuberay.check.serve_documents import ServeConfig
from kuberay.check.structure.schemas import types, unknown

_RENAMED = {
    "max_concurrent_queries": "max_ongoing_requests",
    "target_num_ongoing_requests_per_replica": "target_ongoing_requests",
    "target_num_ongoing_requests": "target_ongoing_requests",
    "num_tpus": "resources: {TPU: n}",
}


@rule(ServeConfig, "serve-config", "KubeRay 1.7: serveConfigV2; Ray Serve 2.60: ServeDeploySchema")
def readable(config: ServeConfig) -> Iterator[Problem]:
    """serveConfigV2 is a YAML mapping with applications; otherwise KubeRay sends it to Serve again and again."""
    never = "and the RayService never becomes Ready"
    if config.unreadable:
        why = f"is not valid YAML ({config.unreadable}): the KubeRay operator cannot read it, {never}"
        yield error(config.source, why, "correct its indentation or quotes")
    elif not config.applications and not config.source.placeholder and not config.node["applications"].placeholder:
        why = f"lists no applications: the KubeRay operator waits for one, or Serve answers 400 forever, {never}"
        yield error(config.source, why, "write at least one application: applications: [{name, import_path}]")


@rule(ServeConfig, "serve-keys", "Ray Serve 2.60: schemas that ignore most unknown keys")
def keys(config: ServeConfig) -> Iterator[Problem]:
    """Every key exists. Serve refuses some unknown keys and silently ignores the rest, so the default stays."""
    for key, child, schema in unknown(config):
        why = f"{schema['title']} has no {key}: Ray Serve refuses it, or silently ignores it and keeps the default"
        near = _RENAMED.get(key) or nearest(key, schema["properties"])
        homes = [each["title"] for each in types().values() if "title" in each and key in each.get("properties", ())]
        instead = f"write {near}" if near else f"move it to {homes[0]}" if homes else "remove it"
        yield (warning if key in _RENAMED else error)(child, why, instead)
