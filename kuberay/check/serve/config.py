"""Serve configs that cannot be read, and keys that Ray Serve ignores."""

import re
from collections.abc import Iterator

from kuberay.check.nodes import repeated
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.structure.schemas import types, unknown
from kuberay.check.subjects import ServeConfig
from ray_configs.base import nearest

_REFUSED = ServeConfig.refused
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


@rule(ServeConfig, "serve-deployment", "Ray Serve 2.60: ServeApplicationSchema, DeploymentSchema")
def deployments(config: ServeConfig) -> Iterator[Problem]:
    """A deployment is listed once, and says its replicas one way."""
    for application in config.applications:
        for name in repeated(deployment["name"] for deployment in application["deployments"]):
            yield error(name, f"the deployment {name.value} is listed twice: {_REFUSED}", "list it once")
    for deployment in config.deployments:
        scaling, fixed = deployment["autoscaling_config"], deployment["num_replicas"]
        least, most = scaling["min_replicas"], scaling["max_replicas"]
        if scaling.present and fixed.number is not None:
            yield error(fixed, f"num_replicas beside autoscaling_config: {_REFUSED}", "keep one of them")
        if fixed.text not in (None, "auto"):
            yield error(fixed, f"{fixed.text!r} is no number of replicas: {_REFUSED}", "write a number, or auto")
        if (least.number or 0) > (most.number if most.number is not None else 1):
            why = f"min_replicas {least.number} is more than max_replicas (1 by default): {_REFUSED}"
            yield error(least, why, "raise max_replicas")
        gang = deployment["gang_scheduling_config"]["gang_size"].number
        for count in (fixed, least, most):
            if gang and count.number is not None and count.number % gang:
                why = f"{count.number} replicas are no whole gangs of {gang}: {_REFUSED}"
                yield error(count, why, f"write a multiple of {gang}")


@rule(ServeConfig, "serve-runtime-env", "Ray Serve 2.60: runtime_env of a config holds remote URIs")
def runtime_env(config: ServeConfig) -> Iterator[Problem]:
    """Code comes from a URI that every node can reach, or from the image."""
    environments = [application["runtime_env"] for application in config.applications]
    environments += [deployment["ray_actor_options"]["runtime_env"] for deployment in config.deployments]
    for node in [uri for each in environments for uri in (each["working_dir"], *each["py_modules"])]:
        if node.text and "://" not in node.text:
            why = f"{node.text} is a local path: {_REFUSED}, the nodes do not have your files"
            instead = "write a URI of a zip file (gs://, https://, s3://), or local:// for a folder of the image"
            yield error(node, why, instead)
        elif re.match(r"https?://", node.text or "") and not re.search(
            r"\.(zip|whl|jar|tar\.gz|tgz)$", node.text or ""
        ):
            why = "is no zip file: Ray downloads packages, not pages or repositories, and the application stays "
            yield warning(node, why + "DEPLOYING until it fails", "write the URL of the .zip archive")
