"""Ray Serve as the cell uses it: one application for each published model, `sax.CELL.MODEL` at /sax/CELL/MODEL.

What runs is always asked of Serve's controller. Two of its calls are not in Serve's Python API: `get_serve_details` is
what `serve status` and the dashboard's REST API print; `list_deployments_internal` is the only one that tells an
application's version, without which every deploy would replace all replicas.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from apps.cell.reconcile import App, Replica, Version
from apps.llm.server import LLMServer
from apps.serving.ingress.api_keys import OPEN, digest
from apps.serving.replica_options import options
from ray_configs.llm import LLMConfig

CALL_S = 30


class ServeApps:
    """The applications of one cell. Every call blocks; they raise what Ray raises when the controller is away."""

    def __init__(self, cell: str, route_prefix: str):
        self._cell = cell
        self._prefix = route_prefix.rstrip("/")

    def app_name(self, model: str) -> str:
        """Dots, for a slash would end up in names of log files; no part of a model's name has one."""
        return model.strip("/").replace("/", ".")

    def route(self, model: str) -> str:
        return f"{self._prefix}{model}"

    def observe(self) -> dict[str, App]:
        """The cell's applications, by the names of their models."""
        client = _get_global_client()
        details = client.get_serve_details()
        infos = ray.get(client._controller.list_deployments_internal.remote(), timeout=CALL_S)
        versions = {id.app_name: info.version for id, (info, _) in infos.items()}
        return {
            f"/{name.replace('.', '/')}": _app(app, versions.get(name) or "")
            for name, app in details["applications"].items()
            if name.startswith(f"sax.{self._cell}.")
        }

    def deploy(
        self,
        model: str,
        config: LLMConfig,
        relay_key: str | None,
        version: Version,
        replicas: int,
        surge_percent: int,
    ) -> None:
        """Returns at once; Serve goes on by itself. Deploying what is deployed already changes nothing.

        `relay_key`: the model answers only to whoever shows it; None: to everyone.
        """
        chosen = options(config) | {"num_replicas": replicas, "max_surge_percent": surge_percent}
        deployment = LLMServer.options(_internal=True, version=str(version), **chosen)
        keys = OPEN if relay_key is None else {digest(relay_key): "cell"}
        serve.run_many(
            [serve.RunTarget(deployment.bind(config, keys), name=self.app_name(model), route_prefix=self.route(model))],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def delete(self, model: str) -> None:
        """Returns at once; the replicas finish what they have, for at most `drain_timeout_s`."""
        serve.delete(self.app_name(model), _blocking=False)


def config_digest(config: LLMConfig, relay_key: str | None) -> str:
    """Changes whenever replicas must be replaced for their config's sake."""
    text = json.dumps([config.model_dump(mode="json"), relay_key], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def own_route_prefix(app: str) -> str:
    """Where this application itself is served."""
    return _get_global_client().get_serve_details()["applications"][app]["route_prefix"] or "/"


def own_port() -> int:
    """The port of Serve's HTTP proxies."""
    return _get_global_client().http_config.port


def _app(app: Mapping[str, Any], version: str) -> App:
    deployment = next(iter(app["deployments"].values()), None)
    if deployment is None:
        return App(app["status"], app["message"], version, 0, 0, ())
    replicas = tuple(
        Replica(each["replica_id"], each["state"], each.get("node_id") or "", each.get("node_ip") or "")
        for each in deployment["replicas"]
    )
    surge = deployment["deployment_config"].get("max_surge_percent", 0)
    message = app["message"] or deployment["message"]
    return App(app["status"], message, version, deployment["target_num_replicas"], surge, replicas)
