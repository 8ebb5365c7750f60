"""An application whose routers stand in front of its engines.

    client -> Serve's proxy -> LLMRouter: HTTP, keys, text, limits, batches -> wire -> LLMEngine: tokens, on a slice

Ray starts both and tells where the engines are; no request passes through it.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from apps.llm.router.fleet import Fleet
from apps.llm.router.journey import Pause
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.remote import RemoteEngine
from apps.llm.router.wire.served import ServedEngine
from apps.llm.served.metrics import EngineMetrics, PauseMetrics, RoutedMetrics
from apps.llm.shared_limits import SharedLimits, Told
from apps.llm.slice import load_engine
from apps.llm.words_server import WordsServer
from apps.serving.ingress.api_keys import Principals
from apps.serving.replica import hosted, log_as_serve_does, without_keys
from apps.serving.replica_options import OPEN, by_open_requests, in_group, options
from ray_configs.cluster.workers import ROUTERS
from ray_configs.llm import EngineConfig, LLMConfig

if TYPE_CHECKING:
    from apps.llm.text import Engine

log = logging.getLogger("podslice")

LOOK_S = 0.5
"""Time between two looks for engines that have come or gone."""
ANSWER_S = 10.0
ASK_S = 600
"""How long a call for an engine may wait; there is always one while requests wait for an engine."""
REPLACED = "the service is being changed, and this process is of before; try again"


def bound_routers(config: LLMConfig) -> serve.Application:
    """The application of a config with `routers`. Engines get no keys: only routers let clients in."""
    chosen = options(config)
    if "autoscaling_config" in chosen:  # Serve does not see what engines have
        chosen["autoscaling_config"] |= {"policy": {"policy_function": by_open_requests}}
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


def engine_digest(config: LLMConfig) -> str:
    """Changes with anything that an engine and the text in front of it are made from."""
    text = config.model_dump_json(include=set(EngineConfig.model_fields))
    return hashlib.sha256(text.encode()).hexdigest()


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
        reports = EngineMetrics(config.served_name).publish_forever(self._engine.stats)
        self._reports = asyncio.create_task(reports)

    async def endpoint(self) -> Endpoint:
        """Where routers reach it, and their keys."""
        return self._served.endpoint

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks for it now and then: see `by_open_requests`."""
        stats = self._engine.stats()
        return {OPEN: stats.running + stats.waiting}

    async def check_health(self) -> None:
        """Raises when the engine's loop or a host is dead or stuck; after three failures Serve replaces the replica."""
        if self._hosts is not None:
            await self._hosts.check()
        self._engine.check(self._deadline_s)

    def __del__(self) -> None:
        if hasattr(self, "_served"):
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
        self._found = RunningEngines(engines, engine_digest(config), kind)
        self._limits: SharedLimits | None = None
        self._context = serve.get_replica_context()
        await super().__init__(config.model_copy(update={"slice": None}), keys)

    def engine(self, config: LLMConfig) -> "Engine":
        from apps.llm.text import Engine

        fleet = self._found.start(config.max_load_share, PauseMetrics(config.served_name).resumed)
        try:
            engine = Engine.over(config, fleet)
        except BaseException:
            self._found.close()
            raise
        if SharedLimits.needed(config):
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


class RunningEngines:
    """Keeps a fleet's members those of a deployment's replicas that run.

    While a service is changed in place, replicas of before and after run side by side, engines and routers alike. A
    router begins with an engine of its own config. Once none of those is left, one of another config goes on with what
    is open, if that does not change what its model answers.

    Args:
        handle: of the deployment.
        config: `engine_digest` of the router's own.
        kind: what its replicas are, in words for readers who wait for one.
    """

    def __init__(self, handle: DeploymentHandle[Any], config: str = "", kind: str = "a replica"):
        self._handle, self._config, self._kind = handle, config, kind
        self._fleet: Fleet | None = None
        self._remotes: dict[str, RemoteEngine] = {}  # by their addresses
        self._left = set[str]()  # addresses of those that are stopped
        self._asking: threading.Thread | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="podslice-engines", daemon=True)

    def start(self, max_load_share: float, resumed: Callable[[Pause], None] = lambda _: None) -> Fleet:
        """Wait for the first engine, and go on looking. Blocks for minutes: engines load, or wait for a slice.

        `resumed`: see `Fleet`.
        """
        log.info("waiting for the first engine")
        first = None
        while first is None:
            own = [endpoint for endpoint in self._running() or () if endpoint.config == self._config]
            connected = (self._connected(endpoint) for endpoint in own)
            first = next((remote for remote in connected if remote is not None), None)
            if first is None:
                self._ask_for_one()
                time.sleep(LOOK_S)
        self._fleet = Fleet(first.capabilities, max_load_share, self._kind, resumed=resumed)
        self._join(first)
        self._thread.start()
        return self._fleet

    def close(self) -> None:
        self._closing.set()
        for remote in list(self._remotes.values()):
            remote.shutdown()

    def _look_on(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                self._look()
            except Exception:
                log.exception("looking for engines failed")

    def _look(self) -> None:
        running = self._running()
        if running is None or self._fleet is None:
            return
        if not running and self._fleet.busy:
            self._ask_for_one()
        found = self._fitting(running)
        addresses = {endpoint.address for endpoint in found}
        for address, remote in list(self._remotes.items()):
            if address not in addresses:
                self._leaves(remote)
            elif not self._fleet.has(remote):  # given up for an error; begin anew
                self._remotes.pop(address, None)
                remote.shutdown()
        self._left &= addresses
        for endpoint in found:
            if endpoint.address in self._remotes.keys() | self._left:
                continue
            if (new := self._connected(endpoint)) is not None:
                self._join(new)
        if running and not found and not self._fleet.members:
            self._fleet.give_up(REPLACED)

    def _fitting(self, running: list[Endpoint]) -> list[Endpoint]:
        """Those whose answers are this router's: of its own config, or, without one of these, of its model."""
        assert self._fleet is not None  # since `start`
        model = self._fleet.capabilities.page_root
        own = [endpoint for endpoint in running if endpoint.config == self._config]
        return own or [endpoint for endpoint in running if endpoint.page_root == model]

    def _ask_for_one(self) -> None:
        """Have Serve start an engine where there is none: a call that waits for one is a reason to."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._wait_for_one, daemon=True)
            self._asking.start()

    def _wait_for_one(self) -> None:
        with suppress(Exception):
            self._handle.endpoint.remote().result(timeout_s=ASK_S)

    def _running(self) -> list[Endpoint] | None:
        """Those that run; None if one of them does not answer, so nothing is known."""
        try:
            asked = self._handle.broadcast("endpoint").results(timeout_s=ANSWER_S, return_exceptions=True)
        except Exception as error:  # Serve itself, or all of them, take too long
            log.warning("engines do not say where they are: %s", error)
            return None
        answered = [endpoint for endpoint in asked if isinstance(endpoint, Endpoint)]
        return answered if len(answered) == len(asked) else None

    def _connected(self, endpoint: Endpoint) -> RemoteEngine | None:
        try:
            return RemoteEngine.connect(endpoint, self._lost, self._leaves)
        except ConnectionError as error:
            log.warning("%s", error)
            return None

    def _join(self, remote: RemoteEngine) -> None:
        assert self._fleet is not None  # since `start`
        self._remotes[remote.endpoint.address] = remote
        try:
            self._fleet.join(remote, f"replica {remote.endpoint.replica}")
        except Exception as error:
            log.error("an engine gets no requests: %s", error)
            self._remotes.pop(remote.endpoint.address, None)
            self._left.add(remote.endpoint.address)
            remote.shutdown()

    def _lost(self, remote: RemoteEngine, reason: str) -> None:
        self._remotes.pop(remote.endpoint.address, None)  # if it is only silent, it is found again
        if self._fleet is not None:
            self._fleet.lost(remote, reason)

    def _leaves(self, remote: RemoteEngine) -> None:
        self._left.add(remote.endpoint.address)
        self._remotes.pop(remote.endpoint.address, None)
        if self._fleet is not None:
            self._fleet.leave(remote)
        threading.Thread(target=self._let_go, args=(remote,), daemon=True).start()  # not in the wire's own thread

    def _let_go(self, remote: RemoteEngine) -> None:
        """Leave an engine that is drained, once it has nothing of this router any more."""
        while remote.busy and not self._closing.wait(LOOK_S):
            pass
        remote.shutdown()
