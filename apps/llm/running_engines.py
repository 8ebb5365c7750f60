"""The engines of a deployment, as a router finds them, and as they come and go."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from ray.serve.handle import DeploymentHandle

from apps.llm.api import Capabilities, EngineStopped
from apps.llm.router.fleet import Fleet
from apps.llm.router.journey import Pause
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.remote import RemoteEngine
from apps.llm.served.metrics import PauseMetrics
from ray_configs.llm import EngineConfig, LLMConfig

if TYPE_CHECKING:
    from apps.llm.text import Engine

log = logging.getLogger("podslice")

LOOK_S = 0.5
"""Time between two looks for engines that have come or gone."""
ANSWER_S = 3.0
"""One that takes longer is left where it is, and does not keep others from being found."""
ASK_S = 600
"""How long a call for an engine may wait; there is always one while requests wait for an engine."""
REPLACED = "the service is being changed, and this process is of before; try again"
OTHER_MODEL = "the model at this place is another one now than when this process started; try again"


def engine_digest(config: LLMConfig) -> str:
    """Changes with anything that an engine and the text in front of it are made from."""
    text = config.model_dump_json(include=set(EngineConfig.model_fields))
    return hashlib.sha256(text.encode()).hexdigest()


class ClusterMemory(Protocol):
    """Keeps what the engines of a config can do for a router that starts while there is none: `private_ray`."""

    def kept(self, name: str) -> bytes:
        """Nothing, or what was kept."""
        ...

    def keep(self, name: str, value: bytes) -> None: ...


class RunningEngines:
    """Keeps a fleet's members those of a deployment's replicas that run.

    While a service is changed in place, replicas of before and after run side by side, engines and routers alike. A
    router begins with an engine of its own config. Once none of those is left, one of another config goes on with what
    is open, if that does not change what its model answers.

    Args:
        handle: of the deployment.
        config: `engine_digest` of the router's own.
        kind: what its replicas are, in words for readers who wait for one.
        memory: of the cluster; without one, a router needs an engine to begin.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        config: str = "",
        kind: str = "a replica",
        memory: ClusterMemory | None = None,
    ):
        self._handle, self._config, self._kind, self._memory = handle, config, kind, memory
        self._fleet: Fleet | None = None
        self._remotes: dict[str, RemoteEngine] = {}  # by their addresses
        self._left = set[str]()  # addresses of those that are stopped
        self._unknown = ""  # why nothing is known of them, as it was logged
        self._asking: threading.Thread | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="podslice-engines", daemon=True)

    def start(self, max_load_share: float, resumed: Callable[[Pause], None] = lambda _: None) -> Fleet:
        """Wait for the first engine, unless one of this config has run before, and go on looking.

        May block for minutes: engines load, or wait for a slice.

        `resumed`: see `Fleet`.
        """
        first = self._first()
        known = self._remembered() if first is None else first.capabilities
        if known is None:
            log.info("waiting for the first engine")
        while known is None:
            if self._closing.is_set():
                raise EngineStopped("nobody waits for this model any more")
            self._ask_for_one()
            time.sleep(LOOK_S)
            first = self._first()
            known = None if first is None else first.capabilities
        self._fleet = Fleet(known, max_load_share, self._kind, resumed=resumed)
        if first is not None:
            self._remember(msgspec.msgpack.encode(known))
            self._join(first)
        self._thread.start()
        return self._fleet

    def _first(self) -> RemoteEngine | None:
        own = [endpoint for endpoint in self._running()[0] if endpoint.config == self._config]
        connected = (self._connected(endpoint) for endpoint in own)
        return next((remote for remote in connected if remote is not None), None)

    def _remembered(self) -> Capabilities | None:
        if self._memory is None:
            return None
        try:
            kept = self._memory.kept(self._config)
            return msgspec.msgpack.decode(kept, type=Capabilities) if kept else None
        except Exception as error:  # no GCS, or another version's; an engine will say
            log.warning("what engines can do is not remembered: %s", error)
            return None

    def _remember(self, capabilities: bytes) -> None:
        if self._memory is None:
            return
        try:
            self._memory.keep(self._config, capabilities)
        except Exception as error:
            log.warning("what engines can do is not kept: %s", error)

    def in_words(self, config: LLMConfig) -> "Engine":
        """The model of a config over these engines, as `start`."""
        from apps.llm.text import Engine

        fleet = self.start(config.max_load_share, PauseMetrics(config.served_name).resumed)
        try:
            return Engine.over(config, fleet)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the engines. A `start` that waits for one ends with EngineStopped."""
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
        running, all_told = self._running()
        if self._fleet is None:
            return
        if not self._fleet.members and self._fleet.busy:
            self._ask_for_one()
        found = self._fitting(running, all_told)
        root = self._fleet.capabilities.page_root
        if found and not self._fleet.members and all(endpoint.page_root != root for endpoint in found):
            # The checkpoint has been replaced, and with it perhaps the tokenizer: Serve starts another router.
            self._remember(b"")
            self._fleet.fail(OTHER_MODEL)
            return
        addresses = {endpoint.address for endpoint in found}
        for address, remote in list(self._remotes.items()):
            if address not in addresses:
                if all_told:
                    self._leaves(remote)
            elif not self._fleet.has(remote):  # given up for an error; begin anew
                self._remotes.pop(address, None)
                remote.shutdown()
        if all_told:
            self._left &= addresses
        for endpoint in found:
            if endpoint.address in self._remotes.keys() | self._left:
                continue
            if (new := self._connected(endpoint)) is not None:
                self._join(new)
        if all_told and running and not found and not self._fleet.members:
            self._fleet.give_up(REPLACED)

    def _fitting(self, running: list[Endpoint], all_told: bool) -> list[Endpoint]:
        """Those whose answers are this router's: of its own config, or, once there is none of these, of its model."""
        assert self._fleet is not None  # since `start`
        model = self._fleet.capabilities.page_root
        own = [endpoint for endpoint in running if endpoint.config == self._config]
        if own or not all_told:
            return own
        return [endpoint for endpoint in running if endpoint.page_root == model]

    def _ask_for_one(self) -> None:
        """Have Serve start an engine where there is none: a call that waits for one is a reason to."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._wait_for_one, daemon=True)
            self._asking.start()

    def _wait_for_one(self) -> None:
        with suppress(Exception):
            self._handle.endpoint.remote().result(timeout_s=ASK_S)

    def _running(self) -> tuple[list[Endpoint], bool]:
        """Those that run and answer, and whether these are all that run: one may be stopped, or just die."""
        try:
            asked = self._handle.broadcast("endpoint").results(timeout_s=ANSWER_S, return_exceptions=True)
        except Exception as error:  # there is none, or Serve itself takes too long
            if self._unknown != (unknown := str(error)):
                log.warning("engines do not say where they are: %s", unknown)
            self._unknown = unknown
            return [], False
        self._unknown = ""
        answered = [endpoint for endpoint in asked if isinstance(endpoint, Endpoint)]
        return answered, len(answered) == len(asked)

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
