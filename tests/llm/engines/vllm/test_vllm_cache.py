"""Pages by vLLM's KV events, in both of its forms. The oracle is the names of the same tokens' pages."""

import itertools
import time
from typing import Any

import msgspec
import zmq

from apps.llm.engines.vllm.cache import BlockNames, KVEventReader
from apps.llm.engines.vllm.tokens import salt_of
from apps.llm.page_names import page_names, page_root

MODEL, SIZE = b"model", 4
TOKENS = list(range(12))


def names(salts: tuple[str, ...] = ("", ""), tokens: list[int] = TOKENS) -> set[bytes]:
    return set(page_names(page_root(MODEL, salts=salts), tokens, SIZE))


def held(cache: BlockNames) -> set[bytes]:
    return set(cache.log.since(0).stored)


def stored(hashes: list[Any], parent: Any, tokens: list[int], extra: Any = None, **more: Any) -> dict[str, Any]:
    event = {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": SIZE}
    more = {"lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": extra} | more
    return {"type": "BlockStored", **event, **more}


def as_array(event: dict[str, Any]) -> list[Any]:
    """As vLLM 0.29 writes it."""
    return list(event.values())


def test_a_prompts_blocks_and_what_follows_them() -> None:
    cache = BlockNames(MODEL, SIZE)
    cache.take(stored([101, 102], None, TOKENS[:8]))
    cache.take(as_array(stored([103], 102, TOKENS[8:])))
    assert held(cache) == names()
    cache.take({"type": "BlockRemoved", "block_hashes": [103, 999], "medium": "GPU"})
    cache.take(["BlockRemoved", [102], "GPU"])
    assert held(cache) == names(tokens=TOKENS[:4])
    cache.take({"type": "AllBlocksCleared"})
    assert held(cache) == set()


def test_salts_are_the_requests_own() -> None:
    cache, salts = BlockNames(MODEL, SIZE), ("key alice", "mine")
    cache.take(stored([1, 2, 3], None, TOKENS, [(salt_of(salts),), None, None]))
    assert held(cache) == names(salts) != names()


def test_what_cannot_be_named_is_left_out() -> None:
    cache = BlockNames(MODEL, SIZE)
    cache.take(stored([1], None, TOKENS[:4], [("f" * 64,)]))  # a digest of a long salt
    cache.take(stored([2], 1, TOKENS[4:8]))
    cache.take(stored([3], None, TOKENS[:4], lora_name="sql"))
    cache.take(stored([4], None, TOKENS[:4], block_size=8))
    cache.take(stored([5], None, TOKENS[:4], group_idx=1))
    cache.take(stored([6], None, TOKENS[:4], medium="CPU"))
    assert held(cache) == set()


def test_a_reader_over_a_socket_and_events_that_are_lost() -> None:
    cache = BlockNames(MODEL, SIZE)
    publisher = zmq.Context.instance().socket(zmq.PUB)
    reader = KVEventReader(f"tcp://127.0.0.1:{(port := publisher.bind_to_random_port('tcp://127.0.0.1'))}", cache)
    numbers = itertools.count()

    def send(*events: Any) -> None:
        batch = msgspec.msgpack.encode([time.time(), events, 0])
        publisher.send_multipart([b"", next(numbers).to_bytes(8, "big"), batch])

    def until(wanted: set[bytes]) -> None:
        deadline = time.monotonic() + 20
        while held(cache) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held(cache) == wanted

    try:
        assert port
        deadline = time.monotonic() + 20
        while not held(cache) and time.monotonic() < deadline:  # until the subscription is there
            send(stored([101], None, TOKENS[:4]))
            time.sleep(0.05)
        send(["Another kind", 3], stored([102, 103], 101, TOKENS[4:]))
        until(names())
        next(numbers)  # a batch that never comes: what it said is not known
        send(stored([101], None, TOKENS[:4]))
        until(names(tokens=TOKENS[:4]))
    finally:
        reader.close()
        publisher.close(linger=0)
