"""What Ray Serve refuses in a config, and what it takes and ignores."""

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
    """serveConfigV2 is a YAML mapping with applications; KubeRay sends it to Serve again and again if it is not."""
    never = "and the RayService never becomes Ready"
    if config.unreadable:
        why = f"is not valid YAML ({config.unreadable}): the KubeRay operator cannot read it, {never}"
        yield error(config.source, why, "correct its indentation or quotes")
    elif not config.applications and not config.source.placeholder and not config.node["applications"].placeholder:
        why = f"lists no applications: the KubeRay operator waits for one, or Serve answers 400 for ever, {never}"
        yield error(config.source, why, "write at least one application: applications: [{name, import_path}]")


@rule(ServeConfig, "serve-keys", "Ray Serve 2.60: schemas that ignore most of what they do not know")
def keys(config: ServeConfig) -> Iterator[Problem]:
    """Serve ignores unknown keys without a word, so a misspelt option keeps its default; some it refuses."""
    for key, child, schema in unknown(config):
        why = (
            f"{schema['title']} has no {key}: Ray Serve refuses it, or ignores it without a word, and the default stays"
        )
        near = _RENAMED.get(key) or nearest(key, schema["properties"])
        homes = [each["title"] for each in types().values() if "title" in each and key in each.get("properties", ())]
        instead = f"write {near}" if near else f"move it to {homes[0]}" if homes else "take it out"
        yield (warning if key in _RENAMED else error)(child, why, instead)
