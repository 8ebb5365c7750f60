"""What vLLM's prefix cache stores and forgets, by the names of pages that routers know: read from its KV events.

vLLM names a block by a hash of its own. Its events have the tokens and the block before, so the names here follow.
Source: vLLM's `distributed/kv_events.py`: 0.29 writes events as arrays, 0.32 as maps.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zmq

from apps.llm.engines.vllm.tokens import salts_of
from apps.llm.page_names import PageName, page_name, page_root
from apps.llm.placement.cache_log import CacheLog

log = logging.getLogger("podslice")

FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                    "extra_keys", "group_idx"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""Of each event, in the order of its array."""
POLL_MS = 200
MOST_WAITING = 100_000
"""Batches that wait to be read; more are lost, and noticed by their numbers."""


class BlockNames:
    """Keeps a log of the pages that vLLM's events speak of.

    Args:
        model: the root of the names; see `Capabilities.page_root`.
    """

    def __init__(self, model: PageName, page_size: int):
        self._model, self._page_size = model, page_size
        self._names: dict[Any, PageName] = {}  # by vLLM's hashes
        self.log = CacheLog()

    def take(self, event: Any) -> None:
        """Note one event. What can't be named is left out."""
        kind, said = _fields(event)
        if said.get("group_idx") or said.get("medium") not in (None, "GPU"):
            return  # other layers of the same tokens, or copies elsewhere
        if kind == "BlockStored":
            self._stored(said)
        elif kind == "BlockRemoved":
            for block in said["block_hashes"]:
                self._forgot(block)
        elif kind == "AllBlocksCleared":
            self.clear()

    def clear(self) -> None:
        """Forget all: they are gone, or nothing is known of them any more."""
        for block in list(self._names):
            self._forgot(block)

    def _stored(self, said: Mapping[str, Any]) -> None:
        size, tokens, before = said["block_size"], said["token_ids"], said["parent_block_hash"]
        extras = said.get("extra_keys") or [None] * len(said["block_hashes"])
        if size != self._page_size or said.get("lora_name"):
            return
        parent = self._root(extras[0]) if before is None else self._names.get(before)
        for number, block in enumerate(said["block_hashes"]):
            if parent is None:
                return
            parent = page_name(parent, tokens[number * size : (number + 1) * size])
            if block not in self._names:
                self._names[block] = parent
                self.log.stored(parent)

    def _root(self, extra: Sequence[Any] | None) -> PageName | None:
        """What the first block of a prompt follows; None if that can't be told."""
        if not extra:
            return page_root(self._model, salts=("", ""))
        salts = salts_of(extra[0]) if len(extra) == 1 and isinstance(extra[0], str) else None
        return None if salts is None else page_root(self._model, salts=salts)

    def _forgot(self, block: Any) -> None:
        if (name := self._names.pop(block, None)) is not None and name in self.log:
            self.log.forgot(name)


class KVEventReader:
    """Follows vLLM's events, in a thread, until `close`.

    Args:
        endpoint: where its PUB socket is.
        listen: that one connects to this address.
    """

    def __init__(self, endpoint: str, names: BlockNames, listen: bool = False):
        self._names, self._closing = names, threading.Event()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, MOST_WAITING)
        (self._socket.bind if listen else self._socket.connect)(endpoint)
        self._socket.subscribe(b"")
        self._next: int | None = None  # number of the batch that comes next
        self._thread = threading.Thread(target=self._run, name="podslice-vllm-events", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._socket.poll(POLL_MS):
                try:
                    self._take(*self._socket.recv_multipart()[-2:])
                except Exception:
                    log.exception("vLLM's KV events could not be read")
        self._socket.close(linger=0)

    def _take(self, number: bytes, payload: bytes) -> None:
        count = int.from_bytes(number, "big")
        if self._next not in (None, count):
            log.warning("vLLM's KV events %s to %d were lost: its pages are learned anew", self._next, count - 1)
            self._names.clear()
        self._next = count + 1
        _, events, *_ = msgspec.msgpack.decode(payload)
        for event in events:
            self._names.take(event)

    def close(self) -> None:
        """Follow them no more."""
        self._closing.set()
        self._thread.join()


def _fields(event: Any) -> tuple[str, Mapping[str, Any]]:
    """An event's kind and fields."""
    if isinstance(event, Mapping):
        return event["type"], event
    kind, *values = event
    return kind, dict(zip(FIELDS.get(kind, ()), values))
