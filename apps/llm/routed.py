"""An application whose routers stand in front of its engines.

    client -> Serve's proxy -> LLMRouter: HTTP, keys, text, limits, batches -> wire -> LLMEngine: tokens, on a slice

Ray starts both and tells where the engines are; no request passes through it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.served import ServedEngine
from apps.llm.running_engines import RunningEngines, engine_digest
from apps.llm.served.held_adapters import HeldAdapters
from apps.llm.served.metrics import EngineMetrics, RoutedMetrics
from apps.llm.served.scaling import ByLoad, ReplicaReport
from apps.llm.shared_limits import SharedLimits, Told
from apps.llm.slice import load_engine
from apps.llm.words_server import WordsServer
from apps.serving import private_ray
from apps.serving.ingress.api_keys import Principals
from apps.serving.machines.leaving import LeavingNodes
from apps.serving.replica import hosted, log_as_serve_does, without_keys
from apps.serving.replica_options import in_group, options
from ray_configs.cluster.workers import ROUTERS
from ray_configs.llm import AdapterSource, LLMConfig

if TYPE_CHECKING:
    from apps.llm.text import Engine


def bound_routers(config: LLMConfig) -> serve.Application:
    """The application of a config with `routers`. Engines get no keys: only routers let clients in."""
    chosen = options(config)
    if "autoscaling_config" in chosen:  # Serve does not see what engines have
        targets = {name: getattr(config, name) for name in ("target_ongoing_requests", *config.scaling_targets)}
        chosen["autoscaling_config"] |= {"policy": {"policy_function": ByLoad, "policy_kwargs": targets}}
    config, keys = without_keys(config)
    # Deployments, which type checkers take for the classes.
    engine, router = cast(Any, LLMEngine), cast(Any, LLMRouter)
    in_front = {name: chosen[name] for name in chosen if name not in ("autoscaling_config", "max_replicas_per_node")}
    own_pods = in_group(ROUTERS)
    if own_pods:
        in_front["max_replicas_per_node"] = 1  # a lost Pod is one router's end
    in_front |= {
        "num_replicas": config.router_count,
        "ray_actor_options": {"num_cpus": config.num_cpus} | own_pods,
        "max_ongoing_requests": config.max_ongoing_requests * max(1, config.max_replicas // config.router_count),
    }
    return cast(serve.Application, router.options(**in_front).bind(config, keys, engine.options(**chosen).bind(config)))


@serve.deployment
class LLMEngine:
    """A replica without HTTP: an engine that routers reach over the wire."""

    async def __init__(self, config: LLMConfig):  # type: ignore[misc]  # Serve awaits it
        log_as_serve_does()
        self._deadline_s, self._drain_s = config.health_step_deadline_s, config.drain_timeout_s
        digest = engine_digest(config)
        self._engine, self._hosts = await hosted(config, load_engine)
        name = serve.get_replica_context().replica_id.unique_id
        self._served = ServedEngine(self._engine.tokens, ray.util.get_node_ip_address(), name, digest)
        self._leaving = [LeavingNodes([private_ray.own_node()])]
        if self._hosts is not None and self._hosts.leaving is not None:
            self._leaving.append(self._hosts.leaving)
        for machines in self._leaving:
            machines.then(self._served.drain)
        reports = EngineMetrics(config.served_name).publish_forever(self._engine.stats)
        self._reports = asyncio.create_task(reports)
        self._adapters, self._report = HeldAdapters(self._engine), ReplicaReport()
        self._changing: asyncio.Task[None] | None = None

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Load and unload LoRA adapters. Serve calls it before the first request and whenever they change.

        At the start it waits for the adapters; later it returns at once, because Serve counts a replica as not running
        while it reconfigures. An adapter that cannot be loaded leaves the rest as it is.

        Args:
            user_config: `adapters`, an AdapterSource for each name.
        """
        changed = asyncio.create_task(self._adapters.hold(user_config["adapters"]))
        if self._changing is None:
            await changed
        self._changing = changed

    async def held_adapters(self) -> dict[str, tuple[AdapterSource, str]]:
        """See `HeldAdapters.all`. Called by a cell's admin through a handle."""
        return self._adapters.all()

    async def endpoint(self) -> Endpoint:
        """Where routers reach it, and their keys."""
        return self._served.endpoint

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks for it every few seconds: see `ByLoad`."""
        return self._report.of(self._engine.stats())

    async def check_health(self) -> None:
        """Raises when the engine's loop or a host is dead or stuck; after three failures Serve replaces the replica."""
        if self._hosts is not None:
            await self._hosts.check()
        self._engine.check(self._deadline_s)

    def __del__(self) -> None:
        if hasattr(self, "_served"):
            for machines in getattr(self, "_leaving", ()):
                machines.close()
            self._served.drain()  # routers take their requests elsewhere, if there is an elsewhere
            deadline = time.monotonic() + self._drain_s
            while self._engine.busy and time.monotonic() < deadline:
                time.sleep(0.05)
            self._served.close()
            self._engine.shutdown()


@serve.deployment
@serve.ingress()
class LLMRouter(WordsServer):
    """Takes requests, and gives their tokens to the engines. It has no chip."""

    METRICS = RoutedMetrics

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: LLMConfig, keys: Principals, engines: DeploymentHandle[Any]
    ):
        kind = "a replica" if config.slice is None else f"a replica on {config.slice}"
        self._found = RunningEngines(engines, engine_digest(config), kind, private_ray)
        self._limits: SharedLimits | None = None
        self._context = serve.get_replica_context()
        await super().__init__(config.model_copy(update={"slice": None}), keys)

    def engine(self, config: LLMConfig) -> "Engine":
        engine = self._found.in_words(config)
        if SharedLimits.needed(config, config.router_count):
            routers = serve.get_deployment_handle(self._context.deployment, self._context.app_name)
            self._limits = SharedLimits(engine.admission, self._context.replica_id.unique_id, routers)
        return engine

    async def limits_used(self) -> Told | None:
        """See `SharedLimits`. None: it has not begun to answer."""
        return None if self._limits is None else self._limits.told()

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "_found"):
            self._found.close()
            if self._limits is not None:
                self._limits.close()
