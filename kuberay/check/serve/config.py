"""What Ray Serve refuses in a config, and what it takes and ignores."""

import re
from collections.abc import Iterator

from kuberay.check.rules import Problem, error, nearest, rule, warning
from kuberay.check.serve_documents import ServeConfig
from kuberay.check.structure.schemas import types, unknown

_REFUSED = ServeConfig.refused
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


@rule(ServeConfig, "serve-application", "Ray Serve 2.60: ServeDeploySchema")
def applications(config: ServeConfig) -> Iterator[Problem]:
    """Applications have names and routes of their own, and an import path."""
    names: set[str] = set()
    routes: set[str] = set()
    for application in config.applications:
        named, prefix, path = (application[key] for key in ("name", "route_prefix", "import_path"))
        name = str(named.value) if named.present else "default"
        route = prefix.value if "route_prefix" in application.fields else "/"
        if name in names:
            yield error(named, f"two applications are named {name}: {_REFUSED}", "give each a name")
        if isinstance(route, str):
            if route in routes:
                why = f"two applications have the route_prefix {route}, which is the default: {_REFUSED}"
                why = why if route == "/" else why.replace(", which is the default", "")
                yield error(prefix, why, f"give each its own, such as /{name}")
            if not prefix.placeholder and not re.fullmatch(r"/([^{}]*[^{}/])?", route):
                why = f"{route!r} is no route: {_REFUSED}"
                yield error(prefix, why, "start with /, do not end with /, and use no { }")
            routes.add(route)
        names.add(name)
        if path.text is not None and (not _IMPORT_PATH.fullmatch(path.text) or ".py:" in path.text):
            why = f"{path.text!r} is no import path: Serve cannot import it, and the application ends as DEPLOY_FAILED"
            without = ", without .py" if ".py" in path.text else ""
            yield error(path, why, f"write module:attribute, as in apps.llm:app{without}")


_IMPORT_PATH = re.compile(r"[\w.-]*\w(:[\w.]*\w|\.\w+)")
