"""Which slices count as free, and what is asked of the autoscaler while none is: with Ray's answers pretended."""

from typing import Any

import pytest

from apps.llm import slice_reservation as reservation
from apps.llm.slice_reservation import Slices, reserve, slices
from ray_configs.tpu import TpuSlice

WANTED = TpuSlice("v5e", "2x4", "4t")  # two hosts of four chips
HEAD = "TPU-v5litepod-8-head"


def host(name: str, worker: int, free: float = 4, **changes: Any) -> dict[str, Any]:
    labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-pod-type": "v5litepod-8", "ray.io/tpu-worker-id": str(worker)}
    node = {"NodeID": f"{name}-{worker}", "Alive": True, "Labels": labels, "Resources": {"TPU": 4}, "free": free}
    return node | changes


def other(kind: str) -> dict[str, Any]:
    return {"Labels": {"ray.io/tpu-slice-name": "s", "ray.io/tpu-pod-type": kind}}


@pytest.mark.parametrize(
    ("nodes", "free", "busy"),
    [
        ([host("a", 0), host("a", 1)], ("a",), ()),
        ([host("a", 0), host("a", 1), host("b", 1), host("b", 0)], ("a", "b"), ()),
        ([host("a", 0), host("a", 1, free=0)], (), ("a",)),  # Ray leaves out what is used up: no key, not a zero
        ([host("a", 0, free=0), host("a", 1, free=0)], (), ("a",)),
        ([host("a", 0), host("a", 1, Alive=False)], (), ()),  # not whole: no slice at all
        ([host("a", 0)], (), ()),
        ([host("a", 0, **other("v5litepod-16")), host("a", 1, **other("v5litepod-16"))], (), ()),
        ([host("a", 0, Resources={"TPU": 8}), host("b", 0, Resources={"TPU": 8})], (), ()),  # the 8-chip host's 2x4
        ([{"NodeID": "cpu", "Alive": True, "Labels": {}, "Resources": {"CPU": 4}, "free": 0}], (), ()),
    ],
)
def test_free_and_busy_slices(nodes: list[dict], free: tuple, busy: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {
        node["NodeID"]: ({"TPU": node["free"]} if node["free"] else {}) | ({HEAD: 1} if "-0" in node["NodeID"] else {})
        for node in nodes
    }
    monkeypatch.setattr(reservation.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(reservation, "available_resources_per_node", lambda: left)
    assert slices(WANTED) == Slices(free, busy)


def test_a_slice_whose_head_is_held_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [host("a", 0), host("a", 1)]
    monkeypatch.setattr(reservation.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(reservation, "available_resources_per_node", lambda: {n["NodeID"]: {"TPU": 4} for n in nodes})
    assert slices(WANTED) == Slices((), ("a",))


def test_without_a_free_slice_whole_ones_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica of three has its slice; two wait: the cluster is to have three, and nothing more once all have."""
    seen = iter([Slices((), ("a",)), Slices((), ("a",)), Slices(("b",), ("a",)), Slices(("b",), ("a",))])
    asked: list[tuple[list, list | None]] = []
    taken = iter([None, "the reservation"])  # somebody else was quicker the first time
    actors = [{"name": f"SERVE_REPLICA::llm#LLMServer#{i}"} for i in range(3)] + [{"name": "another"}]
    owner = "SERVE_REPLICA::llm#LLMServer"
    groups = {
        "1": {"name": f"podslice:{owner}:x", "state": "CREATED"},
        "2": {"name": f"podslice:{owner}:x:head", "state": "CREATED"},
        "3": {"name": f"podslice:{owner}:y", "state": "REMOVED"},
    }
    monkeypatch.setattr(reservation, "slices", lambda wanted: next(seen))
    monkeypatch.setattr(reservation, "_take", lambda wanted, name, owner: next(taken))
    monkeypatch.setattr(reservation, "LOOK_PERIOD_S", 0)
    monkeypatch.setattr(reservation, "placement_group_table", lambda: groups)
    monkeypatch.setattr(reservation.ray.util, "list_named_actors", lambda all_namespaces: actors)
    monkeypatch.setattr(
        reservation,
        "request_resources",
        lambda bundles, bundle_label_selectors=None: asked.append((bundles, bundle_label_selectors)),
    )
    assert reserve(WANTED, owner) == "the reservation"
    whole = [{"TPU": 4}] * 6, [{"ray.io/tpu-pod-type": "v5litepod-8"}] * 6
    assert asked == [whole, whole, ([], None)]
