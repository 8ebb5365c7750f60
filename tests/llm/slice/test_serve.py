"""Replicas that each own a slice of two hosts, behind Serve: they answer, they fail whole, they come back.

Everything runs on this machine: see emulation.py.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.llm.slice.emulated import Emulated
from tests.llm.slice.load import Load, ask, longest_silence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLICES, HOSTS, CHIPS = 2, 2, 2
BACK_S = 300
"""Within this a killed slice serves again, on two cores that others may use too; alone it takes half a minute."""


@pytest.fixture(scope="module")
def settings(slice_cache: str) -> dict[str, Any]:
    return {
        "tiny": True,
        "data_parallel": 1,  # one model over both hosts
        "min_replicas": SLICES,
        "max_replicas": SLICES,
        "routers": 0,  # what a lost slice is to a replica that answers for itself
        "num_cpus": 0.5,
        "max_batch_size": 4,
        "max_step_tokens": 8,
        "max_model_len": 128,
        "compile_cache": slice_cache,
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Emulated]:
    cluster = Emulated(SLICES, HOSTS, CHIPS)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def url(cluster: Emulated, settings: dict[str, Any]) -> str:
    url = cluster.serve()
    cluster.deploy(settings)
    return url


def whole(state: dict[str, Any]) -> bool:
    """Every slice is in use by one replica, and nothing else is there."""
    counts = state["free"], state["busy"], state["hosts"], state["replicas"], len(state["groups"])
    return counts == (0, SLICES, SLICES * HOSTS, SLICES, 2 * SLICES) and set(state["groups"]) == {"CREATED"}


def nothing(state: dict[str, Any]) -> bool:
    return (state["free"], state["hosts"], state["replicas"], state["groups"]) == (SLICES, 0, 0, [])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def strike(cluster: Emulated, url: str, times: int, how: signal.Signals) -> None:
    """Strike one host after the other under load; after each, all is as it was, and nobody was left without a word."""
    load = Load(url)
    try:
        time.sleep(2)
        for turn in range(times):
            before = cluster.until(whole, BACK_S)["pids"]
            victim, began = before[turn % len(before)], time.monotonic()
            os.kill(victim, how)

            def back(state: dict[str, Any], victim: int = victim) -> bool:
                return whole(state) and victim not in state["pids"] and cluster.status()["replicas"] == {"RUNNING": 2}

            after = cluster.until(back, BACK_S)["pids"]
            gone = set(before) - set(after)
            assert len(gone) == HOSTS and not any(map(alive, gone)), "the slice's other host ends too; no other does"
            silence = longest_silence(load.endings, began, time.monotonic())
            print(f"{how.name} {turn + 1}: back after {time.monotonic() - began:.1f} s, silence {silence:.1f} s")
            assert silence < 15, "the other replica answers all the time"
            assert httpx.get(f"{url}/health").status_code == 200
    finally:
        endings = load.stop()
    kinds = Counter(ending.kind for ending in endings)
    print(kinds)
    assert set(kinds) <= {"ok", "refused", "event"}, [e for e in endings if e.kind not in ("ok", "refused", "event")]
    said = [ending.said for ending in endings if ending.kind != "ok"]
    assert any("host" in text for text in said), "errors say what happened"


def test_each_replica_owns_a_slice(cluster: Emulated, url: str) -> None:
    state = cluster.state()
    assert whole(state)
    assert state["replica_homes"] == [f"tpu-group-{i}/0" for i in range(SLICES)], "no other slice's death is theirs"
    texts = {httpx.post(f"{url}/v1/completions", json={"prompt": "x", "temperature": 0}).text[-200:] for _ in range(8)}
    assert ask(url, stream=True).kind == ask(url, stream=False).kind == "ok" and texts
    stats = httpx.get(f"{url}/health").json()["models"]["podslice-demo"]
    assert stats["compiles_after_ready"] == 0 and stats["steps"] > 0


def test_a_killed_host_fails_its_replica_alone(cluster: Emulated, url: str) -> None:
    strike(cluster, url, 1, signal.SIGKILL)


@pytest.mark.long
def test_a_hanging_host_fails_its_replica_alone(cluster: Emulated, url: str) -> None:
    strike(cluster, url, 1, signal.SIGSTOP)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_twenty_kills_in_a_row(cluster: Emulated, url: str) -> None:
    strike(cluster, url, 20, signal.SIGKILL)


def test_a_killed_replica_leaves_nothing_on_its_slice(cluster: Emulated, url: str) -> None:
    before = cluster.until(whole, BACK_S)
    victim = before["replica_pids"][0]
    os.kill(victim, signal.SIGKILL)
    after = cluster.until(lambda state: whole(state) and victim not in state["replica_pids"], BACK_S)
    gone = set(before["pids"]) - set(after["pids"])
    assert len(gone) == HOSTS and not any(map(alive, gone))


def test_a_drained_host_cuts_no_request(cluster: Emulated, url: str) -> None:
    """Its whole slice is given up, after what has begun; the other replica answers all the time."""
    before = cluster.until(whole, BACK_S)
    load = Load(url)
    try:
        time.sleep(2)
        cluster.drain_host("tpu-group-1", 1, 125)
        given_up = cluster.until(lambda state: (state["busy"], state["hosts"]) == (1, HOSTS), BACK_S)
        time.sleep(3)
    finally:
        kinds = Counter(ending.kind for ending in load.stop())
    print(kinds)
    assert set(kinds) <= {"ok", "refused"} and kinds["ok"] > 20
    gone = set(before["pids"]) - set(given_up["pids"])
    assert len(gone) == HOSTS and not any(map(alive, gone))
    cluster.add_host("tpu-group-1", 1, CHIPS)
    cluster.until(whole, BACK_S)


def test_deleting_the_application_gives_all_slices_back(cluster: Emulated, url: str) -> None:
    cluster.undeploy()
    cluster.until(nothing, 30)


def test_a_replica_that_cannot_start_keeps_no_slice(cluster: Emulated, url: str, settings: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="RuntimeError"):
        cluster.deploy(settings | {"tensor_parallel": 3, "min_replicas": 1, "max_replicas": 1})
    cluster.undeploy()
    cluster.until(nothing, 30)
