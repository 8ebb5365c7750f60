"""Several replicas, some of which die: each line gets one answer, and saved answers are not computed again."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.llm.batch_api import records, runner, work
from apps.llm.batch_api.files.storage import FILE, new_id
from apps.llm.batch_api.records import BatchStore
from apps.llm.batch_api.runner import Runner
from apps.serving.files import Lease
from tests.cloud_storage import cloud_storage
from tests.llm.batch_api.serving import StandIn, kept_in, lines


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.1)
    monkeypatch.setattr(work, "SAVE_PERIOD_S", {True: (0.0, 0.1), False: (0.0, 0.1)})


def begin(
    kept: BatchStore, *prompts: str, owner: str = "default", model: str = "stand-in", window_s: int = 3600
) -> str:
    id_, content = new_id(FILE), lines(*prompts)
    with kept.files.writing(owner, id_) as file:
        file.write(content)
    kept.files.add(owner, id_, len(content), "in.jsonl", "batch")
    asked = {"input_file_id": id_, "endpoint": "/v1/completions", "completion_window": "1h", "metadata": None}
    return kept.records.add(owner, model, asked, window_s)["id"]


async def until(condition: Callable[[], Any], timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.02)


def completed(kept: BatchStore, id_: str) -> int:
    return kept.records.get("default", id_)["request_counts"]["completed"]


def has_ended(kept: BatchStore, id_: str) -> bool:
    return kept.records.get("default", id_)["status"] in ("completed", "failed", "expired", "cancelled")


def output(kept: BatchStore, id_: str) -> list[bytes]:
    about = kept.records.get("default", id_)
    assert about["status"] == "completed", about
    return b"".join(kept.files.pieces("default", about["output_file_id"])).splitlines()


async def die(replica: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the replica abruptly, as a kill would."""
    with monkeypatch.context() as dead:
        dead.setattr(Lease, "release", lambda lease: None)
        for name in ("save", "clear"):
            dead.setattr(work.Parts, name, lambda *_: None)
        dead.setattr(work.BatchWork, "stopped", lambda work: asyncio.sleep(0))
        await replica.__aexit__(None, None, None)  # type: ignore[attr-defined]


async def life_and_death(kept: BatchStore, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    first = StandIn(may_answer=asyncio.Semaphore(7))
    second = StandIn()
    dying = Runner(kept).running(first, first)
    await dying.__aenter__()
    id_ = begin(kept, *map(str, range(20)))
    await until(lambda: completed(kept, id_) == 7)
    saved = {path.rpartition("/")[2] for path in kept.storage.names("keys", "default", "batches", id_)}
    assert {"lease.json", "progress.json"} < saved
    async with Runner(kept).running(second, second):
        await asyncio.sleep(0.5)
        assert not second.asked, "the first replica lives and holds the lease"
        await die(dying, monkeypatch)
        if not waits:
            kept.storage.remove(kept.records.path("default", id_, "lease.json"))  # as when its time had passed
        await until(lambda: not kept.records.open())
    answered_first = {prompt for prompt in first.asked if prompt not in second.asked}
    assert len(answered_first) == 7 and sum(second.asked.values()) == 13
    assert [f"answer to {i}".encode() in line for i, line in enumerate(output(kept, id_))] == [True] * 20


def test_another_replica_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(life_and_death(kept_in(tmp_path), monkeypatch, waits=False))


@pytest.mark.slow
def test_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    from gcsfs.extended_gcsfs import BucketType, ExtendedGcsFileSystem

    async def plain(*_: object) -> BucketType:
        """Without credentials, gcsfs looks for them before each call, which takes some tenths of a second."""
        return BucketType.NON_HIERARCHICAL

    monkeypatch.setattr(ExtendedGcsFileSystem, "_get_bucket_type", plain)
    for module in (records, runner):
        monkeypatch.setattr(module, "LEASE_S", 10.0)
        monkeypatch.setattr(module, "RENEW_S", 1.0)
    with cloud_storage() as storage:
        kept = kept_in("gs://a-bucket/batches")
        asyncio.run(life_and_death(kept, monkeypatch, waits=True))
        kinds = [name.rpartition("/")[2] for name in storage.names("a-bucket")]
        assert sorted(kind for kind in kinds if not kind.startswith("file-")) == ["batch.json", "end.json"]


def test_replicas_share_batches_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CONFIRM_S", 0.3)
    kept, one, other = kept_in(tmp_path), StandIn(), StandIn()
    ids = [begin(kept, *(f"{batch}-{i}" for i in range(30))) for batch in range(4)]

    async def run() -> None:
        async with Runner(kept).running(one, one), Runner(kept).running(other, other):
            await until(lambda: all(has_ended(kept, id_) for id_ in ids))

    asyncio.run(run())
    assert all(len(output(kept, id_)) == 30 for id_ in ids)
    assert one.asked and other.asked and len(one.asked + other.asked) == 120
    assert max(one.most, other.most) <= one.max_batch_size


def test_a_replica_that_is_stopped_lets_go_at_once(tmp_path: Path) -> None:
    kept, first, second = kept_in(tmp_path), StandIn(may_answer=asyncio.Semaphore(5)), StandIn()
    id_ = begin(kept, *map(str, range(10)))

    async def run() -> None:
        async with Runner(kept).running(first, first):
            await until(lambda: sum(first.asked.values()) == 9)
        assert "lease.json" not in kept.storage.names("keys", "default", "batches", id_)
        assert first.running == 0 and completed(kept, id_) <= 5
        async with Runner(kept).running(second, second):
            await until(lambda: has_ended(kept, id_))

    asyncio.run(run())
    assert sum(second.asked.values()) == 5, "answers were saved at shutdown"


def test_a_server_of_another_model_leaves_a_batch_alone_until_it_expires(tmp_path: Path) -> None:
    kept, other = kept_in(tmp_path), StandIn(name="other")
    theirs, late = begin(kept, "a", model="stand-in"), begin(kept, "b", model="stand-in", window_s=-1)
    mine = begin(kept, "c", model="other")

    async def run() -> None:
        async with Runner(kept).running(other, other):
            await until(lambda: has_ended(kept, mine) and has_ended(kept, late))

    asyncio.run(run())
    assert dict(other.asked) == {"c": 1}
    assert kept.records.get("default", theirs)["status"] == "validating"
    assert kept.records.get("default", late)["status"] == "expired"


def test_a_batch_that_kills_every_replica_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, model = kept_in(tmp_path), StandIn(may_answer=asyncio.Semaphore(0))
    id_ = begin(kept, "poison")

    async def run() -> None:
        for round in range(work.MAX_STARTS):
            replica = Runner(kept).running(model, model)
            await replica.__aenter__()
            await until(lambda round=round: model.asked["poison"] > round)
            await die(replica, monkeypatch)
            kept.storage.remove(kept.records.path("default", id_, "lease.json"))  # as when its time had passed
        async with Runner(kept).running(model, model):
            await until(lambda: has_ended(kept, id_))

    asyncio.run(run())
    batch = kept.records.get("default", id_)
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "server_ended"
    assert model.asked["poison"] == work.MAX_STARTS


def test_what_a_kill_between_two_files_leaves_is_cleared_away(tmp_path: Path) -> None:
    kept, model = kept_in(tmp_path), StandIn()
    id_ = begin(kept, "a")
    opened = kept.records.open()[0]
    kept.records.end(opened, {"status": "cancelled"})  # as if killed before the working files were removed
    orphan = kept.storage.path("open", f"batch_{'0' * 28}.json")
    kept.storage.write(orphan, {"owner": "default", "model": "stand-in", "expires_at": opened.expires_at})

    async def run() -> None:
        async with Runner(kept).running(model, model):
            await until(lambda: not kept.records.open())

    asyncio.run(run())
    assert not model.asked and kept.records.get("default", id_)["status"] == "cancelled"
