"""Where an engine's vLLM runs: on this host, or behind another class of the same form."""

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Protocol

from apps.llm.engines.vllm.arguments import arguments
from apps.llm.engines.vllm.child import Child
from apps.llm.engines.vllm.client import VllmClient
from apps.llm.engines.vllm.model import ServedModel
from ray_configs.llm import EngineConfig


class VllmProcess(Protocol):
    """One or more processes that are one vLLM, and where the first answers."""

    def client(self) -> VllmClient: ...

    @property
    def events(self) -> str | None:
        """Where its KV events are, or are to be sent; None: it sends none."""

    @property
    def listens(self) -> bool:
        """Whether the events are sent to that address, and not fetched from there."""

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""

    def close(self) -> None: ...


class LocalProcess:
    """vLLM on this host. Its sockets are files that only this user may open.

    Args:
        chips: of the slice, to split the model over; None: there is no slice.
    """

    listens = False

    def __init__(self, config: EngineConfig, model: ServedModel, chips: int | None):
        self._folder = tempfile.mkdtemp(prefix="podslice-vllm-")
        self._socket = str(Path(self._folder, "http"))
        published, events = config.kv_events, dict[str, Any]()
        self.events: str | None = None
        if config.prefix_cache:
            events = {"endpoint": f"ipc://{self._folder}/events"} if published is None else published.model_dump()
            self.events = str(events["endpoint"]).replace("://*", "://127.0.0.1")
            events |= {"enable_kv_cache_events": True, "publisher": "zmq"}
        try:
            words = arguments(with_devices(config, chips), model, {"uds": self._socket}, events, None)
            self._child = Child(words, {})
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def client(self) -> VllmClient:
        return VllmClient(unix=self._socket)

    @property
    def ended(self) -> str | None:
        return self._child.ended

    def close(self) -> None:
        self._child.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def with_devices(config: EngineConfig, chips: int | None) -> EngineConfig:
    """The config with its default of `tensor_parallel`: all chips of the slice."""
    if config.tensor_parallel is not None or chips is None:
        return config
    return config.model_copy(update={"tensor_parallel": chips})


def free_port(address: str) -> int:
    """A port of this host that nobody has."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
