"""What Ray Serve refuses in a config, and what it takes and ignores."""

import re
from collections.abc import Iterator
from typing import Any

from kuberay.check.nodes import Node, repeated
from kuberay.check.rules import Problem, error, nearest, rule, warning
from kuberay.check.serve_documents import ServeApplication, ServeConfig, ServeDeployment

_KEYS = {
    line.split(":")[0]: frozenset(line.split(":")[1].split())
    for line in """
a Serve config: proxy_location http_options grpc_options controller_options logging_config tracing_config applications \
  target_capacity
http_options: host port root_path request_timeout_s keep_alive_timeout_s ssl_keyfile ssl_certfile \
  ssl_keyfile_password ssl_ca_certs
grpc_options: port grpc_servicer_functions request_timeout_s enable_reflection
an application: name route_prefix import_path runtime_env host port deployments autoscaling_policy args \
  logging_config external_scaler_enabled
a deployment: name num_replicas max_ongoing_requests max_queued_requests backpressure_config user_config \
  autoscaling_config graceful_shutdown_wait_loop_s graceful_shutdown_timeout_s health_check_period_s \
  health_check_timeout_s ray_actor_options placement_group_bundles placement_group_strategy \
  placement_group_bundle_label_selector max_replicas_per_node logging_config request_router_config \
  gang_scheduling_config deployment_actors rolling_update_percentage max_surge_percent
ray_actor_options: runtime_env num_cpus num_gpus memory resources accelerator_type label_selector fallback_strategy
autoscaling_config: min_replicas initial_replicas max_replicas target_ongoing_requests metrics_interval_s \
  look_back_period_s smoothing_factor upscale_smoothing_factor downscale_smoothing_factor upscaling_factor \
  downscaling_factor downscale_delay_s downscale_to_zero_delay_s upscale_delay_s aggregation_function policy
""".strip().splitlines()
}
"""Keys of Ray Serve 2.60's schemas, by what they are part of."""

_RENAMED = {
    "max_concurrent_queries": "max_ongoing_requests",
    "target_num_ongoing_requests_per_replica": "target_ongoing_requests",
    "target_num_ongoing_requests": "target_ongoing_requests",
    "num_tpus": "resources: {TPU: n}",
}


@rule(ServeConfig, "serve-config", "KubeRay 1.7: serveConfigV2; Ray Serve 2.60: ServeDeploySchema")
def readable(config: ServeConfig) -> Iterator[Problem]:
    """serveConfigV2 is a YAML mapping with applications; KubeRay sends it to Serve again and again if it is not."""
    source, node, never = config.source, config.node, "the RayService never becomes Ready"
    if node is None:
        if not source.placeholder:
            why = f"is not valid YAML ({config.unreadable}): the KubeRay operator cannot read it and {never}"
            yield error(source, why, "correct its indentation or quotes")
    elif node.value is None:
        why = f"is empty: the KubeRay operator sends {{}} to Serve, which answers 400 for ever, and {never}"
        yield error(source, why, "write at least one application: applications: [{name, import_path}]")
    elif not isinstance(node.value, dict):
        yield error(
            source, f"is no mapping: the KubeRay operator cannot read it and {never}", "start it with applications:"
        )
    elif not isinstance(node["applications"].value, list):
        if not node["applications"].placeholder:
            why = f"has no list of applications: Serve answers 400 for ever, and {never}"
            yield error(node["applications"], why, "write applications: as a list")
    elif not config.applications:
        why = f"lists no application: KubeRay waits for one, and {never}"
        yield error(node["applications"], why, "write at least one application")


@rule(ServeConfig, "serve-keys", "Ray Serve 2.60: schemas that ignore what they do not know")
def keys(config: ServeConfig) -> Iterator[Problem]:
    """Serve ignores unknown keys without a word, so a misspelt option keeps its default."""
    if config.node is not None:
        yield from _unknown(config.node, "a Serve config")
        for part in ("http_options", "grpc_options"):
            yield from _unknown(config.node[part], part)
    for application in config.applications:
        yield from _unknown(application.node, "an application")
    for deployment in config.deployments:
        yield from _unknown(deployment.node, "a deployment")
        for part in ("ray_actor_options", "autoscaling_config"):
            yield from _unknown(deployment[part], part)


def _unknown(node: Node, what: str) -> Iterator[Problem]:
    for key, child in node.fields.items():
        if key in _KEYS[what] or "{" in key or "$" in key:
            continue
        if key in _RENAMED:
            why = f"{what} has no {key} (any more): Ray Serve 2.60 ignores it without a word"
            yield warning(child, why, f"write {_RENAMED[key]}")
            continue
        near = nearest(key, _KEYS[what])
        homes = [home for home, keys in _KEYS.items() if key in keys]
        instead = f"write {near}" if near else f"move it to {homes[0]}" if homes else "take it out"
        yield error(child, f"{what} has no {key}: Ray Serve ignores it without a word, and the default stays", instead)


@rule(ServeConfig, "serve-application", "Ray Serve 2.60: ServeDeploySchema")
def names_and_routes(config: ServeConfig) -> Iterator[Problem]:
    """Applications have names and routes of their own."""
    names: set[Any] = set()
    routes: set[Any] = set()
    for application in config.applications:
        if not isinstance(application.node.value, dict):
            yield error(application.node, "is no application: Serve refuses the config", "write name and import_path")
            continue
        named, prefix = application["name"], application["route_prefix"]
        name = str(named.value) if named.present else "default"
        if name in names:
            yield error(named, f"two applications are named {name}: Serve refuses the config", "give each a name")
        names.add(name)
        route = prefix.value if "route_prefix" in application.node.fields else "/"
        if not isinstance(route, str):
            continue
        if route in routes:
            said = "" if prefix.present else ", the default"
            why = f"two applications have the route_prefix {route}{said}: Serve refuses the config"
            yield error(prefix, why, f"give each its own, such as /{name}")
        routes.add(route)
        odd = not route.startswith("/") or "{" in route or (route.endswith("/") and route != "/")
        if odd and not prefix.placeholder:
            why = f"{route!r} is no route: Serve refuses it"
            yield error(prefix, why, "start with /, do not end with /, and use no { }")


@rule(ServeApplication, "serve-application", "Ray Serve 2.60: ServeApplicationSchema")
def application(application: ServeApplication) -> Iterator[Problem]:
    """An application has an import path, and no address of its own."""
    if not isinstance(application.node.value, dict):
        return
    for key in ("host", "port"):
        if application[key].present:
            why = f"an application has no {key} of its own: Serve refuses the config"
            yield error(application[key], why, f"write http_options: {{{key}: ...}} at the top")
    path = application["import_path"]
    if path.placeholder:
        return
    if not isinstance(path.value, str):
        yield error(path, "has no import_path: Serve refuses the config", "write import_path: module:attribute")
    elif not re.fullmatch(r"[\w.-]*\w(:[\w.]*\w|\.\w+)", path.value) or ".py:" in path.value:
        why = f"{path.value!r} is no import path: Serve cannot import it, and the application ends as DEPLOY_FAILED"
        without = ", without .py" if ".py" in path.value else ""
        yield error(path, why, f"write module:attribute, as in apps.llm:app{without}")


@rule(ServeApplication, "serve-deployment", "Ray Serve 2.60: ServeApplicationSchema")
def deployment_names(application: ServeApplication) -> Iterator[Problem]:
    """An application lists each of its deployments once."""
    for name in repeated(deployment["name"] for deployment in application.deployments):
        yield error(name, f"the deployment {name.text} is listed twice: Serve refuses the config", "list it once")


@rule(ServeDeployment, "serve-deployment", "Ray Serve 2.60: DeploymentSchema")
def deployment(deployment: ServeDeployment) -> Iterator[Problem]:
    """A deployment has a name, and says its replicas one way."""
    name, scaling, fixed = deployment["name"], deployment["autoscaling_config"], deployment["num_replicas"]
    if name.text is None and not name.placeholder:
        yield error(name, "a deployment without a name: Serve refuses the config", "write name")
    if scaling.present and fixed.number is not None:
        yield error(fixed, "num_replicas beside autoscaling_config: Serve refuses the config", "keep one of them")
    least, most = scaling["min_replicas"], scaling["max_replicas"].number
    if (least.number or 0) > (1 if most is None else most):
        said = "1, the default" if most is None else most
        why = f"min_replicas {least.number} is more than max_replicas {said}: Serve refuses the config"
        yield error(least, why, "raise max_replicas")
    gang = deployment["gang_scheduling_config"]["gang_size"].number
    for count in (fixed, least, scaling["max_replicas"]):
        if gang and count.number is not None and count.number % gang:
            why = f"{count.number} replicas are no whole gangs of {gang}: Serve refuses the config"
            yield error(count, why, f"write a multiple of {gang}")
    if fixed.text not in (None, "auto"):
        why = f"{fixed.text!r} is no number of replicas: Serve refuses the config"
        yield error(fixed, why, "write a number, or auto")


@rule(ServeConfig, "serve-runtime-env", "Ray Serve 2.60: runtime_env of a config holds remote URIs")
def runtime_env(config: ServeConfig) -> Iterator[Problem]:
    """Code comes from a URI that every node can reach, or from the image."""
    environments = [application["runtime_env"] for application in config.applications]
    environments += [deployment.actor["runtime_env"] for deployment in config.deployments]
    for node in [uri for each in environments for uri in (each["working_dir"], *each["py_modules"])]:
        if not node.text:
            continue
        if "://" not in node.text:
            yield error(
                node,
                f"{node.text} is a local path: Serve refuses the config, the nodes do not have your files",
                "write a URI of a zip file (gs://, https://, s3://), local:// for a folder of the image, or put the "
                "code into the image and take it out",
            )
        elif re.match(r"https?://", node.text) and not re.search(r"\.(zip|whl|jar|tar\.gz|tgz)$", node.text):
            why = "is no zip file: Ray downloads packages, not pages or repositories, and the application stays "
            yield warning(node, why + "DEPLOYING until it fails", "write the URL of the .zip archive")
