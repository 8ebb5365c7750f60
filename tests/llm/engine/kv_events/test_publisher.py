"""Page events as vLLM publishes them: the positions of `vllm/distributed/kv_events.py`, read with msgpack alone.

Dynamo reads them in tests/llm/client_libraries/test_kv_events.py."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from apps.llm.engine.kv_events.feed import MovedPage, StoredPage
from apps.llm.engine.kv_events.publisher import as_events
from apps.llm.page_names import page_names, page_root
from apps.llm.text import Engine, SamplingParams
from ray_configs.llm import EngineConfig
from tests.ports import free_port

PAGE = 16
GREEDY = SamplingParams(temperature=0, max_tokens=PAGE + 2, ignore_eos=True)


@pytest.fixture
def subscribe() -> Iterator[Any]:
    context = zmq.Context()

    def subscribed(port: int, topic: str) -> "zmq.Socket[bytes]":
        sub = context.socket(zmq.SUB)
        sub.setsockopt(zmq.RCVTIMEO, 30_000)
        sub.subscribe(topic)
        sub.connect(f"tcp://127.0.0.1:{port}")
        return sub

    subscribed.context = context  # type: ignore[attr-defined]
    yield subscribed
    context.destroy(linger=0)


def config(model: Path, cache: str, **fields: Any) -> EngineConfig:
    sizes = {"dtype": "float32", "max_batch_size": 2, "max_step_tokens": 64, "page_size": PAGE, "max_model_len": 128}
    return EngineConfig(model=str(model), compile_cache=cache, **sizes, **fields)


def published(model: Path, cache: str) -> tuple[Engine, int, int]:
    """An engine, and its two ports. Other tests take free ports too while it loads."""
    for _ in range(5):
        ports = free_port(), free_port()
        endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        events = {"endpoint": endpoint, "replay_endpoint": replay, "topic": "kv@podslice"}
        try:
            return Engine.load(config(model, cache, pages=9, kv_events=events)), *ports
        except ValueError as error:
            assert "Address already in use" in str(error)
    raise AssertionError("no port stays free")


def test_whoever_follows_the_events_knows_the_cache(llama: Path, compile_cache: str, subscribe: Any) -> None:
    engine, port, replay_port = published(llama, compile_cache)
    sub, known, numbers = subscribe(port, "kv@"), dict[int, tuple[int | None, list[int]]](), list[int]()

    def read(parts: list[bytes]) -> None:
        number, batch = parts[-2:]
        numbers.append(int.from_bytes(number, "big"))
        _, happened, rank = msgspec.msgpack.decode(batch)
        assert rank == 0
        for kind, hashes, *rest in happened:
            assert all(isinstance(one, int) and 0 <= one < 2**64 for one in hashes)
            if kind == "BlockRemoved":
                assert rest == ["GPU"]
                for one in hashes:
                    del known[one]
                continue
            parent, tokens, size, lora_id, medium, lora_name, *_ = rest
            assert (kind, size, lora_id, medium, lora_name) == ("BlockStored", PAGE, None, "GPU", None)
            assert len(tokens) == PAGE * len(hashes)
            for at, one in enumerate(hashes):
                known[one] = (hashes[at - 1] if at else parent, tokens[at * PAGE : (at + 1) * PAGE])

    try:
        prompts = [list(range(number, number + 40)) for number in range(40, 100, 15)]  # more pages than the cache has
        answers = []
        for prompt in prompts:
            generation = engine.submit(prompt, GREEDY)
            answers.append([token for output in generation for token in output.token_ids])
        (news,) = engine.tokens.cache_news()
        replay = subscribe.context.socket(zmq.DEALER)  # a REQ socket takes one answer alone
        replay.setsockopt(zmq.RCVTIMEO, 30_000)
        replay.connect(f"tcp://127.0.0.1:{replay_port}")
        replay.send_multipart([b"", (0).to_bytes(8, "big")])
        while int.from_bytes((parts := replay.recv_multipart())[-2], "big", signed=True) >= 0:
            read(parts)
        assert numbers == list(range(len(numbers)))
        assert known.keys() == {int.from_bytes(name[:8], "big") for name in news.stored}, "what the cache has"
        last = [*prompts[-1], *answers[-1]]
        names = page_names(page_root(engine.capabilities.page_root, b"", ("", "")), last, PAGE)
        whole = [one for one in known if known[one][0] is None]
        assert any(known[one][1] == last[:PAGE] for one in whole), "and what is in it, answers too"
        assert {int.from_bytes(name[:8], "big") for name in names} <= known.keys() and len(names) == 3
        list(engine.submit([7] * 40, GREEDY))
        topic, number, _ = sub.recv_multipart()
        assert topic == b"kv@podslice" and int.from_bytes(number, "big") >= 0, "and live"
    finally:
        engine.shutdown()


def test_a_port_in_use_is_named(llama: Path, compile_cache: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"kv_events.endpoint: cannot listen on {endpoint}"):
            Engine.load(config(llama, compile_cache, pages=9, kv_events={"endpoint": endpoint}))


def test_pages_of_one_prompt_are_one_event() -> None:
    page = [StoredPage(bytes([n] * 16), bytes([n - 1] * 16) if n else None, (n, n), None, ("salt",)) for n in range(4)]
    other = StoredPage(b"o" * 16, None, (9, 9), b"key", ())
    gone = [MovedPage(one.name, stored=False, on_host=False) for one in page[:2]]
    happened = [page[0], page[1], other, page[2], page[3], *gone]
    stored, of_other, more, removed = as_events(happened, 2, lambda key: key.decode() + "'s name")
    assert stored.token_ids == [0, 0, 1, 1] and stored.parent_block_hash is None
    assert stored.extra_keys == [("salt",), None]
    assert of_other.lora_name == "key's name" and of_other.extra_keys is None
    assert len(more.block_hashes) == 2 and more.parent_block_hash == stored.block_hashes[-1]
    assert removed.block_hashes == stored.block_hashes


def test_of_copies_in_host_memory_the_hashes_are_said() -> None:
    """As vLLM's offloading connector has it: medium CPU, no tokens, no parent."""
    names = [bytes([n] * 16) for n in range(3)]
    page = StoredPage(names[0], None, (1, 2), None, ())
    kept = [MovedPage(name, stored=True, on_host=True) for name in names]
    gone = [MovedPage(name, stored=False, on_host=False) for name in names]
    lost = [MovedPage(name, stored=False, on_host=True) for name in names[:1]]
    stored, on_host, removed, dropped = as_events([page, *kept, *gone, *lost], 2, str)
    assert (stored.medium, stored.token_ids) == ("GPU", [1, 2])
    hashes = [int.from_bytes(name[:8], "big") for name in names]
    assert (on_host.medium, on_host.block_hashes, on_host.token_ids) == ("CPU", hashes, [])
    assert on_host.parent_block_hash is None
    assert (removed.medium, removed.block_hashes) == ("GPU", hashes)
    assert (dropped.medium, dropped.block_hashes) == ("CPU", hashes[:1])
