"""vLLM over the hosts of a slice: a process on each, of which the first answers."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from apps.llm.engines.vllm.arguments import VllmNode, arguments
from apps.llm.engines.vllm.child import Child
from apps.llm.engines.vllm.client import VllmClient
from apps.llm.engines.vllm.model import ServedModel
from apps.llm.engines.vllm.processes import free_port, with_devices
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

LOOK_S = 1.0
"""Between two looks at the hosts."""


@dataclass(frozen=True)
class VllmOrders:
    """What every host's process is started with."""

    hosts: int
    chips: int
    leader: tuple[str, int]
    """Where the processes meet, on the first host."""
    api: tuple[str, int]
    """Where that one answers."""
    events: str | None
    """Where it sends its KV events: to the replica, so that nobody else is sent the tokens in them."""
    key: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(32))

    @classmethod
    def of(cls, config: EngineConfig, slice: TpuSlice, leader: str, api: str, here: str) -> "VllmOrders":
        """Orders for the hosts of a slice.

        Args:
            leader, api: free addresses of the first host.
            here: address of this one.

        Raises:
            ValueError: the config publishes events.
        """
        if config.kv_events is not None:
            raise ValueError("kv_events: vLLM on several hosts sends its events to its replica alone: leave it out")
        events = f"tcp://{here}:{free_port(here)}" if config.prefix_cache else None
        return cls(slice.hosts, slice.chips, _address(leader), _address(api), events)

    def child(self, config: EngineConfig, rank: int) -> Child:
        """Start the process of this host."""
        host = VllmNode(rank, self.hosts, self.leader)
        events = {"endpoint": self.events, "enable_kv_cache_events": True, "publisher": "zmq"} if self.events else {}
        address, port = self.api
        listen = {"host": address, "port": port}
        words = arguments(with_devices(config, self.chips), ServedModel.open(config), listen, events, host)
        # By the environment: a command line is for everyone to read.
        return Child(words, {"VLLM_API_KEY": self.key})


class VllmSlice:
    """A `VllmProcess` over a slice.

    Args:
        release: gives the slice back, and with it ends the processes.
        lost: says which host is gone and how, if one is. It may take seconds.
    """

    listens = True

    def __init__(self, orders: VllmOrders, release: Callable[[], None], lost: Callable[[], str | None]):
        self._orders, self._release, self._lost = orders, release, lost
        self.failure: str | None = None
        """Why it can't go on; set once."""
        threading.Thread(target=self._watch, name="podslice-vllm-hosts", daemon=True).start()

    def _watch(self) -> None:
        """Also while it loads, when nobody else asks."""
        while self.failure is None:
            if (how := self._lost()) is not None:
                self.fail(how)
            time.sleep(LOOK_S)

    @property
    def events(self) -> str | None:
        return self._orders.events

    def client(self) -> VllmClient:
        address, port = self._orders.api
        return VllmClient(url=f"http://{address}:{port}", key=self._orders.key)

    @property
    def ended(self) -> str | None:
        return self.failure

    def fail(self, reason: str) -> None:
        """Give the slice back: a host is gone. What it had ends as its connections close."""
        if self.failure is None:
            self.failure = reason
            self._release()

    def close(self) -> None:
        """Give the slice back."""
        self.failure = self.failure or "it was shut down"
        self._release()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
