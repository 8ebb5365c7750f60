"""Which adapters an engine has: their names, and their indices on the devices."""

import threading
import time
from dataclasses import dataclass, field

from apps.llm.api import AdapterInfo, RequestError, UnknownAdapter


@dataclass(eq=False)
class Adapter:
    """A LoRA adapter on the devices."""

    name: str
    location: str
    index: int  # among the adapters on the devices, from 1
    created: int = field(default_factory=lambda: int(time.time()))
    key: bytes = b""
    """Digest of its weights: tells its KV pages from those of the model and of other adapters, also of an earlier one
    with this name. The same on every replica that has loaded the same weights."""

    @property
    def info(self) -> AdapterInfo:
        return AdapterInfo(self.name, self.key, self.created)


class LoadedAdapters:
    """The adapters by name, and the indices that are free. Thread-safe.

    Args:
        capacity: how many fit at a time.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._free = list(reversed(range(1, capacity + 1)))
        self._ready: dict[str, Adapter] = {}
        self._loading: dict[str, Adapter] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Adapter]:
        """Those that requests can ask for, oldest first."""
        return sorted(self._ready.values(), key=lambda adapter: adapter.created)

    def with_key(self, key: bytes) -> Adapter:
        """One with these weights. Raises UnknownAdapter."""
        for adapter in list(self._ready.values()):
            if adapter.key == key:
                return adapter
        raise UnknownAdapter("with these weights any more")

    def name_of(self, key: bytes) -> str:
        """The name of the adapter with these weights; the key, if it is no longer there."""
        return next((adapter.name for adapter in list(self._ready.values()) if adapter.key == key), key.hex())

    def get(self, name: str) -> Adapter:
        """Raises UnknownAdapter."""
        try:
            return self._ready[name]
        except KeyError:
            raise UnknownAdapter(name) from None

    def take_index(self, name: str, location: str) -> Adapter:
        """An index for a new adapter, which has its name only after `ready`.

        Raises:
            RequestError: the name is taken, or no index is free.
        """
        with self._lock:
            if name in self._ready or name in self._loading:
                raise RequestError("lora_name", f"lora_name: there is an adapter {name} already; unload it first")
            if not self._free:
                raise RequestError(
                    "lora_name",
                    f"all {self.capacity} places for adapters are taken: unload one, or raise max_adapters",
                )
            adapter = self._loading[name] = Adapter(name, location, self._free.pop())
            return adapter

    def ready(self, adapter: Adapter) -> None:
        with self._lock:
            self._ready[adapter.name] = self._loading.pop(adapter.name)

    def retire(self, name: str) -> Adapter:
        """Take the name away; its index stays taken until `give_back`. Raises UnknownAdapter."""
        with self._lock:
            adapter = self.get(name)
            del self._ready[name]
            return adapter

    def give_back(self, adapter: Adapter) -> None:
        """Free the index of an adapter that was retired or never became ready."""
        with self._lock:
            if self._loading.get(adapter.name) is adapter:
                del self._loading[adapter.name]
            self._free.append(adapter.index)
