"""Publishes a DP rank's page events over ZeroMQ, as vLLM does (`vllm/distributed`).

Each message of the PUB socket has three parts: the topic, the batch's number as 8 bytes in big-endian order, and
`[time, events, DP rank]` in msgpack. An event is an array that begins with its kind. Hashes are unsigned 64-bit
integers. Arrays, because Dynamo 1.6.1 reads no batch that is a map, as vLLM's newest source writes it; and it drops
batches with bytes in place of integers.

Who has missed a batch sends its number to the replay socket, a ROUTER, and gets it and all that came after, then the
number -1.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty

import msgspec
import zmq

from apps.llm.engine.kv_events.feed import MovedPage, PageFeed, StoredPage
from apps.llm.page_names import PageName
from ray_configs.applications.kv_events import KVEvents

log = logging.getLogger(__name__)

MOST = 512  # events of a batch
POLL_S = 0.1  # how often replay requests are looked for while nothing else happens
DEVICES, HOST = "GPU", "CPU"
"""vLLM's words for the accelerators' memory and for their hosts'."""
END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, array_like=True, tag=True):
    """Pages of one prompt, one after the other. Of copies in host memory, vLLM says the hashes alone."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None  # vLLM's own older field
    medium: str = DEVICES
    lora_name: str | None = None
    extra_keys: list[tuple[str, ...] | None] | None = None  # of each page: what else it is found by


class BlockRemoved(msgspec.Struct, array_like=True, tag=True):
    block_hashes: list[int]
    medium: str = DEVICES


class EventBatch(msgspec.Struct, array_like=True):
    ts: float  # seconds since 1970
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int


def as_events(
    happened: Iterable[StoredPage | MovedPage], page_size: int, name_of: Callable[[bytes], str]
) -> list[BlockStored | BlockRemoved]:
    """The events as vLLM has them, with neighbours that belong together in one.

    Args:
        name_of: gives an adapter's name, from its key.
    """
    found: list[BlockStored | BlockRemoved] = []
    last: StoredPage | None = None
    for event in happened:
        before = found[-1] if found else None
        if isinstance(event, MovedPage):
            moved = as_moved(event, page_size)
            if last is None and before is not None and type(before) is type(moved) and before.medium == moved.medium:
                before.block_hashes += moved.block_hashes
            else:
                found.append(moved)
            last = None
            continue
        follows = last is not None and event.parent == last.name and event.adapter == last.adapter
        if not follows or not isinstance(before, BlockStored):
            parent = None if event.parent is None else as_integer(event.parent)
            name = None if event.adapter is None else name_of(event.adapter)
            before = BlockStored([], parent, [], page_size, lora_name=name)
            found.append(before)
        before.block_hashes.append(as_integer(event.name))
        before.token_ids += event.token_ids
        salts = tuple(filter(None, event.salts))
        if salts and event.parent is None:  # as vLLM has it: the first page's, on which all others depend
            before.extra_keys = [salts]
        elif before.extra_keys is not None:
            before.extra_keys.append(None)
        last = event
    return found


def as_moved(event: MovedPage, page_size: int) -> BlockStored | BlockRemoved:
    medium, hashes = HOST if event.on_host else DEVICES, [as_integer(event.name)]
    return BlockStored(hashes, None, [], page_size, medium=medium) if event.stored else BlockRemoved(hashes, medium)


def as_integer(name: PageName) -> int:
    return int.from_bytes(name[:8], "big")


class KVEventPublisher:
    """Publishes what a feed brings, in a thread, until `close`.

    Args:
        rank: the DP rank, whose ports are so many above the config's.
        name_of: gives an adapter's name, from its key.

    Raises:
        ValueError: an endpoint cannot be listened on. It names the field.
    """

    def __init__(self, config: KVEvents, feed: PageFeed, page_size: int, rank: int, name_of: Callable[[bytes], str]):
        self._feed, self._page_size, self._rank, self._name_of = feed, page_size, rank, name_of
        self._topic, self._number = config.topic.encode(), 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)  # number, batch
        self._context = zmq.Context()
        try:
            self._pub = self._context.socket(zmq.PUB)
            self._pub.set_hwm(config.hwm)
            self._listen(self._pub, "endpoint", config.of_rank(config.endpoint, rank))
            self._replay = None
            if config.replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._listen(self._replay, "replay_endpoint", config.of_rank(config.replay_endpoint, rank))
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="podslice-kv-events", daemon=True)
        self._thread.start()

    @staticmethod
    def _listen(socket: "zmq.Socket[bytes]", field: str, endpoint: str) -> None:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ValueError(
                f"kv_events.{field}: cannot listen on {endpoint} ({zmq.strerror(error.errno or 0)})"
            ) from error

    def close(self) -> None:
        """Publish what is left, and stop."""
        self._feed.events.put(None)
        self._thread.join()
        self._context.destroy(linger=1000)

    def _run(self) -> None:
        while True:
            happened = self._next()
            ends = None in happened
            try:
                self._answer_replays()
                self._publish([event for event in happened if event is not None])
            except Exception:  # else nobody would empty the feed any more
                log.exception("page events could not be sent")
            if ends:
                return

    def _next(self) -> list[StoredPage | MovedPage | None]:
        happened: list[StoredPage | MovedPage | None] = []
        with suppress(Empty):
            happened.append(self._feed.events.get(timeout=POLL_S))
            while len(happened) < MOST and happened[-1] is not None:
                happened.append(self._feed.events.get_nowait())
        return happened

    def _publish(self, happened: list[StoredPage | MovedPage]) -> None:
        if not happened:
            return
        batch = EventBatch(time.time(), as_events(happened, self._page_size, self._name_of), self._rank)
        number, content = self._number.to_bytes(8, "big"), msgspec.msgpack.encode(batch)
        self._number += 1
        self._kept.append((number, content))
        self._pub.send_multipart([self._topic, number, content])

    def _answer_replays(self) -> None:
        while self._replay is not None and self._replay.poll(0):
            client, *_, first = self._replay.recv_multipart()
            for number, content in self._kept:
                if number >= first:
                    self._replay.send_multipart([client, b"", number, content])
            self._replay.send_multipart([client, b"", END, b""])
