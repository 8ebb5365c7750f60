"""Ray Serve as the cell uses it: one application for each published model, `sax.CELL.MODEL`, of engines without HTTP.

What runs is always read from Serve's controller. Deploying the version that is already deployed keeps all replicas.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import serve

from apps.cell.names import app_name
from apps.cell.reconcile import ReplicaStatus, ServeApp, Target, Version
from apps.llm.routed import LLMEngine
from apps.serving import private_ray
from apps.serving.replica_options import options
from ray_configs.llm import AdapterSource, LLMConfig

log = logging.getLogger("podslice")

ASK_S = 2.0
"""How long replicas have to tell which adapters they have."""


class ServeApps:
    """The applications of one cell. Calls block, and raise Ray's own errors when the controller is unreachable."""

    def __init__(self, cell: str):
        self._cell = cell
        self._held: dict[str, tuple[Any, dict[str, str]]] = {}
        """By application: its replicas and adapters, and `ServeApp.adapter_refusals` once it will not change."""

    def observe(self) -> dict[str, ServeApp]:
        """The cell's applications, by the names of their models."""
        applications, given = private_ray.applications(), private_ray.given()
        apps = {
            name: _app(app, given.get(name, private_ray.Given("", ())))
            for name, app in applications.items()
            if name.startswith(f"sax.{self._cell}.")
        }
        self._held = {name: held for name, held in self._held.items() if name in apps}
        return {
            f"/{name.replace('.', '/')}": replace(app, adapter_refusals=self._refusals(name, app))
            for name, app in apps.items()
        }

    def _refusals(self, name: str, app: ServeApp) -> dict[str, str]:
        """`ServeApp.adapter_refusals`, as the replicas tell; they are asked until each adapter is loaded or refused."""
        if not app.adapters or not app.active:
            return {}
        state = ([replica.id for replica in app.replicas], app.adapters)
        known, found = self._held.get(name, (None, {}))
        if known == state:
            return found
        try:
            told = serve.get_app_handle(name).broadcast("held_adapters").results(timeout_s=ASK_S)
        except Exception as error:  # replicas come and go; the next round asks again
            log.info("the replicas of %s do not tell which adapters they have: %s", name, error)
            return {}
        found = adapter_refusals(app.adapters, told)
        if len(found) == len(app.adapters):
            self._held[name] = state, found
        return found

    def deploy(self, model: str, config: LLMConfig, version: Version, target: Target) -> None:
        """Start a deployment and return at once. Deploying what is deployed already changes nothing."""
        chosen = options(config) | {
            "num_replicas": target.replicas,
            "max_surge_percent": target.surge_percent,
            "user_config": {"adapters": dict(target.adapters)},
        }
        target_app = serve.RunTarget(
            private_ray.with_version(LLMEngine, str(version), **chosen).bind(config),
            name=app_name(model),
            route_prefix=None,
            logging_config=private_ray.logging_config(),
        )
        serve.run_many(
            [target_app],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def delete(self, model: str) -> None:
        """Start a deletion and return at once; replicas finish their requests, for at most `drain_timeout_s`."""
        private_ray.delete_application(app_name(model))


def adapter_refusals(
    adapters: Mapping[str, AdapterSource], told: Sequence[Mapping[str, tuple[AdapterSource, str]]]
) -> dict[str, str]:
    """Why an adapter was refused, "" if all replicas have loaded it. Without those that one is still to load.

    Args:
        told: by replica, the adapters that it has loaded or refused.
    """
    found = {}
    for name, source in adapters.items():
        answers = [refusal for held in told for known, refusal in [held.get(name, (None, ""))] if known == source]
        if refusals := [refusal for refusal in answers if refusal]:
            found[name] = refusals[0]
        elif told and len(answers) == len(told):
            found[name] = ""
    return found


def config_digest(config: LLMConfig) -> str:
    """A digest that changes whenever a new config requires new replicas."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _app(app: Mapping[str, Any], given: private_ray.Given) -> ServeApp:
    deployment = next(iter(app["deployments"].values()), None)
    if deployment is None:
        return ServeApp(app["status"], app["message"], given.version, 0, 0, ())
    replicas = tuple(
        ReplicaStatus(each["replica_id"], each["state"], each.get("node_id") or "", each.get("node_ip") or "")
        for each in deployment["replicas"]
    )
    settings = deployment["deployment_config"]
    surge, user_config = settings.get("max_surge_percent", 0), settings.get("user_config") or {}
    message = app["message"] or deployment["message"]
    wanted, adapters = deployment["target_num_replicas"], user_config.get("adapters", {})
    config = next((argument for argument in given.arguments if isinstance(argument, LLMConfig)), None)
    return ServeApp(app["status"], message, given.version, wanted, surge, replicas, adapters, config=config)
