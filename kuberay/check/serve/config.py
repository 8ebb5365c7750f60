"""What Ray Serve refuses in a config, and what it takes and ignores."""

import re
from collections.abc import Iterator

from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, nearest, rule, warning
from kuberay.check.serve_documents import ServeConfig, applications_and_deployments

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
    source, node = config.source, config.node
    if node is None:
        if not source.placeholder:
            yield error(
                source,
                f"is not valid YAML ({config.unreadable}): the KubeRay operator cannot read it and the "
                "RayService never becomes Ready",
                "correct its indentation or quotes",
            )
    elif node.value is None:
        yield error(
            source,
            "is empty: the KubeRay operator sends {} to Serve, which answers 400 for ever, and the "
            "RayService never becomes Ready",
            "write at least one application: applications: [{name, import_path}]",
        )
    elif not isinstance(node.value, dict):
        yield error(
            source,
            "is no mapping: the KubeRay operator cannot read it and the RayService never becomes Ready",
            "start it with applications:",
        )
    elif not isinstance(node["applications"].value, list):
        if not node["applications"].placeholder:
            yield error(
                node["applications"],
                "has no list of applications: Serve answers 400 for ever, and the RayService never becomes Ready",
                "write applications: as a list",
            )
    elif not config.applications:
        yield error(
            node["applications"],
            "lists no application: KubeRay waits for one, and the RayService never becomes Ready",
            "write at least one application",
        )


@rule(ServeConfig, "serve-keys", "Ray Serve 2.60: schemas that ignore what they do not know")
def keys(config: ServeConfig) -> Iterator[Problem]:
    """Serve ignores unknown keys without a word, so a misspelt option keeps its default."""
    if config.node is None:
        return
    yield from _unknown(config.node, "a Serve config")
    for part in ("http_options", "grpc_options"):
        yield from _unknown(config.node[part], part)
    for application in config.applications:
        yield from _unknown(application, "an application")
    for _, deployment in applications_and_deployments(config):
        yield from _unknown(deployment, "a deployment")
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


@rule(ServeConfig, "serve-application", "Ray Serve 2.60: ServeDeploySchema, ServeApplicationSchema")
def applications(config: ServeConfig) -> Iterator[Problem]:
    """Applications have an import path, and names and routes of their own."""
    names: set[str] = set()
    routes: set[str] = set()
    for application in config.applications:
        if not isinstance(application.value, dict):
            yield error(application, "is no application: Serve refuses the config", "write name and import_path")
            continue
        name = application["name"].value if application["name"].present else "default"
        route = application["route_prefix"].value if "route_prefix" in application.fields else "/"
        if name in names:
            yield error(
                application["name"], f"two applications are named {name}: Serve refuses the config", "give each a name"
            )
        if route is not None and route in routes:
            said = "" if application["route_prefix"].present else ", the default"
            yield error(
                application["route_prefix"],
                f"two applications have the route_prefix {route}{said}: Serve refuses the config",
                "give each its own, such as /" + str(name),
            )
        if isinstance(name, str):
            names.add(name)
        if isinstance(route, str):
            routes.add(route)
            if not application["route_prefix"].placeholder and (
                not route.startswith("/") or "{" in route or (route.endswith("/") and route != "/")
            ):
                yield error(
                    application["route_prefix"],
                    f"{route!r} is no route: Serve refuses it",
                    "start with /, do not end with /, and use no { }",
                )
        for key in ("host", "port"):
            if application[key].present:
                yield error(
                    application[key],
                    f"an application has no {key} of its own: Serve refuses the config",
                    f"write http_options: {{{key}: ...}} at the top",
                )
        yield from _import_path(application["import_path"])


def _import_path(node: Node) -> Iterator[Problem]:
    text = node.value
    if node.placeholder:
        return
    if not isinstance(text, str):
        yield error(node, "has no import_path: Serve refuses the config", "write import_path: module:attribute")
    elif not re.fullmatch(r"[\w.-]*\w(:[\w.]*\w|\.\w+)", text) or ".py:" in text:
        yield error(
            node,
            f"{text!r} is no import path: Serve cannot import it, and the application ends as DEPLOY_FAILED",
            "write module:attribute, as in apps.llm:app" + (", without .py" if ".py" in text else ""),
        )


@rule(ServeConfig, "serve-deployment", "Ray Serve 2.60: DeploymentSchema")
def deployments(config: ServeConfig) -> Iterator[Problem]:
    """Deployments of an application differ by name, and say their replicas one way."""
    seen: set[tuple[int, str]] = set()
    for application, node in applications_and_deployments(config):
        name = node["name"].text
        key = (id(application.value), name or "")
        if name is None and not node["name"].placeholder:
            yield error(node["name"], "a deployment without a name: Serve refuses the config", "write name")
        elif name and key in seen:
            yield error(
                node["name"], f"the deployment {name} is listed twice: Serve refuses the config", "list it once"
            )
        seen.add(key)
        scaling, fixed = node["autoscaling_config"], node["num_replicas"]
        if scaling.present and fixed.number is not None:
            yield error(fixed, "num_replicas beside autoscaling_config: Serve refuses the config", "keep one of them")
        least, most = scaling["min_replicas"].number, scaling["max_replicas"].number
        if least is not None and least > (most if most is not None else 1):
            yield error(
                scaling["min_replicas"],
                f"min_replicas {least} is more than max_replicas "
                f"{most if most is not None else '1, the default'}: Serve refuses the config",
                "raise max_replicas",
            )
        gang = node["gang_scheduling_config"]["gang_size"].number
        for count in (fixed, scaling["min_replicas"], scaling["max_replicas"]):
            if gang and count.number is not None and count.number % gang:
                why = f"{count.number} replicas are no whole gangs of {gang}: Serve refuses the config"
                yield error(count, why, f"write a multiple of {gang}")
        if fixed.text not in (None, "auto"):
            yield error(
                fixed, f"{fixed.text!r} is no number of replicas: Serve refuses the config", "write a number, or auto"
            )


@rule(ServeConfig, "serve-runtime-env", "Ray Serve 2.60: runtime_env of a config holds remote URIs")
def runtime_env(config: ServeConfig) -> Iterator[Problem]:
    """Code comes from a URI that every node can reach, or from the image."""
    environments = [application["runtime_env"] for application in config.applications]
    environments += [
        deployment["ray_actor_options"]["runtime_env"] for _, deployment in applications_and_deployments(config)
    ]
    for environment in environments:
        for node in (environment["working_dir"], *environment["py_modules"]):
            if node.text is not None and "://" not in node.text:
                yield error(
                    node,
                    f"{node.text} is a local path: Serve refuses the config, the nodes do not have your files",
                    "write a URI of a zip file (gs://, https://, s3://), local:// for a folder of the "
                    "image, or put the code into the image and take it out",
                )
            elif (
                node.text
                and re.match(r"https?://", node.text)
                and not re.search(r"\.(zip|whl|jar|tar\.gz|tgz)$", node.text)
            ):
                yield warning(
                    node,
                    "is no zip file: Ray downloads packages, not pages or repositories, and the "
                    "application stays DEPLOYING until it fails",
                    "write the URL of the .zip archive",
                )
