"""Which slices count as free or lost, and what a replica without one asks for: with Ray's answers pretended."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.core.generated.common_pb2 import NodeDeathInfo
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from apps.llm import slice_reservation as reservation
from apps.llm.slice_reservation import Slices, reserve, slices
from apps.serving import private_ray
from ray_configs.tpu import TpuSlice

WANTED = TpuSlice("v5e", "2x4", "4t")  # two hosts of four chips
HEAD = "TPU-v5litepod-8-head"
OWNER = "SERVE_REPLICA::llm#LLMServer"
DAY_S = 86_400
NOW = time.time()
"""Of all that is told here: a long run collects its tests many minutes before it comes to them."""


def host(
    name: str, worker: int, free: float = 4, *, kind: str = "v5litepod-8", chips: float = 4, began_ago_s: float = 100
) -> Any:
    """A living node, with so many chips that nobody uses."""
    number = f"{name}-{worker}-{kind}-{chips}-{began_ago_s}".encode()
    node = GcsNodeInfo(node_id=number, resources_total={"TPU": chips} if kind else {})
    node.start_time_ms = int((NOW - began_ago_s) * 1000)
    if kind:
        labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-pod-type": kind, "ray.io/tpu-worker-id": str(worker)}
        node.labels.update(labels)
    return SimpleNamespace(node=node, free=free, draining=False)


def dead(name: str, worker: int, why: int = NodeDeathInfo.UNEXPECTED_TERMINATION, ago_s: float = 1) -> Any:
    """Of a node that is gone, Ray keeps the labels."""
    one = host(name, worker)
    one.node.node_id += str(ago_s).encode()
    one.node.state, one.node.death_info.reason = GcsNodeInfo.DEAD, why
    one.node.end_time_ms = int((NOW - ago_s) * 1000)
    del one.node.resources_total["TPU"]
    return one


def draining(name: str, worker: int) -> Any:
    one = host(name, worker)
    one.draining = True
    return one


IDLE = NodeDeathInfo.AUTOSCALER_DRAIN_IDLE


def seen(nodes: list[Any], monkeypatch: pytest.MonkeyPatch) -> Slices:
    left = {
        one.node.node_id.hex(): ({"TPU": one.free} if one.free else {})
        | ({HEAD: 1} if one.node.labels.get("ray.io/tpu-worker-id") == "0" else {})
        for one in nodes
    }
    gcs = SimpleNamespace(get_all_node_info=lambda: {number: one.node for number, one in enumerate(nodes)})
    monkeypatch.setattr(ray._private.worker.global_worker, "gcs_client", gcs, raising=False)
    monkeypatch.setattr(private_ray, "free_resources", lambda: left)
    leaving = {one.node.node_id.hex(): 0 for one in nodes if one.draining}
    monkeypatch.setattr(private_ray, "draining_nodes", lambda: leaving)
    with monkeypatch.context() as then:
        then.setattr(time, "time", lambda: NOW)
        return slices(WANTED)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([host("a", 0), host("a", 1)], Slices(free=("a",))),
        ([host("a", 0), host("a", 1), host("b", 1), host("b", 0)], Slices(free=("a", "b"))),
        # Ray leaves out what is used up: no key, not a zero.
        ([host("a", 0), host("a", 1, free=0)], Slices(busy=("a",))),
        ([host("a", 0, free=0), host("a", 1, free=0)], Slices(busy=("a",))),
        ([host("a", 0)], Slices()),  # not whole: no slice at all
        ([host("a", 0, kind="v5litepod-16"), host("a", 1, kind="v5litepod-16")], Slices()),
        ([host("a", 0, chips=8), host("b", 0, chips=8)], Slices()),  # the 8-chip host's 2x4
        ([host("cpu", 0, kind="")], Slices()),
        # A host that died: its slice will be made anew, and so will one that is about to go.
        ([host("a", 0), dead("a", 1)], Slices(lost=("a",))),
        ([dead("a", 0), dead("a", 1), host("b", 0, 0), host("b", 1, 0)], Slices(busy=("b",), lost=("a",))),
        ([draining("a", 0), draining("a", 1)], Slices(lost=("a",))),
        # It is there again, under its old name.
        ([dead("a", 0), dead("a", 1), host("a", 0), host("a", 1)], Slices(free=("a",))),
        # The first host of the next one is there, or that of the last one is still.
        ([dead("a", 0, ago_s=9), dead("a", 1, ago_s=9), host("a", 0, began_ago_s=5)], Slices()),
        ([dead("a", 1, ago_s=9), host("a", 0, began_ago_s=20)], Slices(lost=("a",))),
        # Nobody needed it: nobody makes it anew. One of its hosts may have gone with the Pods of the others.
        ([dead("a", 0, IDLE), dead("a", 1, IDLE)], Slices()),
        ([dead("a", 0, IDLE), dead("a", 1, NodeDeathInfo.EXPECTED_TERMINATION)], Slices()),
        # Given back once, lost later; and the reverse.
        ([dead("a", 0, IDLE, 90), dead("a", 1, IDLE, 90), dead("a", 0), dead("a", 1)], Slices(lost=("a",))),
        ([dead("a", 0, ago_s=90), dead("a", 1, ago_s=90), dead("a", 0, IDLE), dead("a", 1, IDLE)], Slices()),
        # It did not come again within any reason.
        ([dead("a", 0, ago_s=DAY_S), dead("a", 1, ago_s=DAY_S)], Slices()),
    ],
)
def test_slices(nodes: list[Any], expected: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(nodes, monkeypatch) == expected


def test_a_slice_whose_head_is_held_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [host("a", 0), host("a", 1)]
    seen(nodes, monkeypatch)
    left = {one.node.node_id.hex(): {"TPU": 4} for one in nodes}
    monkeypatch.setattr(private_ray, "free_resources", lambda: left)
    assert slices(WANTED) == Slices(busy=("a",))


class Wishes:
    """Placement groups that nobody places but the test."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.open: dict[int, str] = {}

    def make(self, bundles: list, **options: Any) -> int:
        self.made.append({"bundles": bundles, **options})
        self.open[len(self.made)] = "PENDING"
        return len(self.made)

    def remove(self, wish: int) -> None:
        del self.open[wish]


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> Wishes:
    wishes = Wishes()
    monkeypatch.setattr(reservation, "placement_group", wishes.make)
    monkeypatch.setattr(reservation, "remove_placement_group", wishes.remove)
    monkeypatch.setattr(reservation, "placement_group_table", lambda wish: {"state": wishes.open[wish]})
    monkeypatch.setattr(reservation, "LOOK_PERIOD_S", 0)
    monkeypatch.delenv("PODSLICE_SLICES_KEPT", raising=False)
    return wishes


def looks(monkeypatch: pytest.MonkeyPatch, wishes: Wishes, states: Iterator[Slices]) -> list[dict[int, str]]:
    """Lets `reserve` see these states. Returns the wishes that it had at each look."""
    had: list[dict[int, str]] = []

    def look(wanted: TpuSlice) -> Slices:
        had.append(dict(wishes.open))
        return next(states)

    monkeypatch.setattr(reservation, "slices", look)
    return had


def test_who_waits_wishes_for_one_whole_slice_and_only_so_long(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([None, "the reservation"])  # somebody else was quicker the first time
    monkeypatch.setattr(reservation, "_take", lambda wanted, name, owner: next(taken))
    busy, free = Slices(busy=("a",)), Slices(free=("b",), busy=("a",))
    had = looks(monkeypatch, wishes, iter([busy, busy, free, busy, free]))
    assert reserve(WANTED, OWNER) == "the reservation"
    assert had == [{}] + 4 * [{1: "PENDING"}] and wishes.open == {}
    (wish,) = wishes.made
    assert wish["bundles"] == [{"TPU": 4}] * 2 and wish["strategy"] == "STRICT_SPREAD"
    assert wish["bundle_label_selector"] == [{"ray.io/tpu-pod-type": "v5litepod-8"}] * 2
    assert wish["name"].startswith(f"podslice:{OWNER}:"), "goes with what a replica that Ray restarts gives back"


def test_a_wish_that_came_true_is_removed_so_that_the_slice_can_be_taken(
    wishes: Wishes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "_take", lambda wanted, name, owner: "the reservation")

    def states() -> Iterator[Slices]:
        yield Slices()
        wishes.open[1] = "CREATED"  # on hosts of two slices, say: none of them is free now
        yield Slices(busy=("a", "b"))
        yield Slices(busy=("a", "b"))  # the other one's wish is still there, on a host of each
        yield Slices(free=("a", "b"))

    had = looks(monkeypatch, wishes, states())
    assert reserve(WANTED, OWNER) == "the reservation"
    assert had == [{}, {1: "PENDING"}, {}, {}]
    assert len(wishes.made) == 1, "no second wish in a moment when slices become free"


def test_a_lost_slice_is_not_asked_for_twice(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "_take", lambda wanted, name, owner: name)
    had = looks(monkeypatch, wishes, iter([Slices(lost=("a",))] * 3 + [Slices(free=("a",))]))
    assert reserve(WANTED, OWNER) == "a"
    assert had == [{}] * 4 and not wishes.made


def test_slices_that_are_kept_are_never_asked_for(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODSLICE_SLICES_KEPT", "1")
    monkeypatch.setattr(reservation, "_take", lambda wanted, name, owner: name)
    looks(monkeypatch, wishes, iter([Slices(), Slices(free=("a",))]))
    assert reserve(WANTED, OWNER) == "a" and not wishes.made


def test_whoever_is_interrupted_takes_the_wish_along(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> Iterator[Slices]:
        yield Slices()
        raise ConnectionError("Ray is gone")

    looks(monkeypatch, wishes, states())
    with pytest.raises(ConnectionError):
        reserve(WANTED, OWNER)
    assert wishes.made and not wishes.open
