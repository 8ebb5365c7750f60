"""How Ray's autoscaler and KubeRay's operator scale the slices of several hosts that we render. See world.py.

`most` is the most `replicas` that a worker group was ever told to have: what was paid for, wanted or not.
"""

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from ray.autoscaler.v2.instance_manager import config as v2_config

from ray_configs.capacity import FlexStart
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kuberay.autoscaler.world import Replica, World

pytestmark = pytest.mark.slow

SLICE, TPU, CPU = "v5e:2x4:4t", "tpu-v5e-2x4-4t", "cpu-v5e-2x4-4t"
"""Two hosts."""
ROUTERS = {"routers": 2}
"""Where a service may have several replicas: two Pods from the first second to the last."""
LATER_S = 400
"""Longer than the autoscaler lets anything be idle."""


def service(least: int, most: int, slice: str = SLICE, **more: Any) -> Service:
    config = LLMConfig(slice=slice, min_replicas=least, max_replicas=most)
    return Service(name="s", applications=(Application(config=config, **more),))


def beside_one_that_scales(config: LLMConfig | CellConfig) -> Service:
    scaling = LLMConfig(slice="v6e:2x2", min_replicas=0, max_replicas=2)
    applications = Application(config=config), Application(config=scaling, name="other", route_prefix="/other")
    return Service(name="s", applications=applications)


def served(world: World) -> Replica:
    replica = world.replica(SLICE)
    world.until(lambda: replica.serves)
    return replica


def test_the_first_slice_comes_with_the_first_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(service(0, 2), monkeypatch)
    world.seconds(60)
    assert world.most == {TPU: 0, CPU: 0} | ROUTERS
    served(world)
    world.seconds(LATER_S)
    assert world.most == {TPU: 1, CPU: 1} | ROUTERS and len(world.slices(TPU)) == 1 and not world.wishes


@pytest.mark.parametrize("stopped", [0, 1], ids=["the older one", "the newer one"])
def test_a_second_slice_comes_and_the_one_that_is_idle_goes(stopped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve decides which replica it stops: the first slice made or the second may be the idle one."""
    world = World(service(1, 2), monkeypatch)
    replicas = [served(world), served(world)]
    world.seconds(LATER_S)
    assert world.most == {TPU: 2, CPU: 2} | ROUTERS and len(world.slices(TPU)) == 2
    busy = replicas[1 - stopped]
    world.stop(replicas[stopped])
    world.until(lambda: len(world.slices(TPU)) == 1)
    world.seconds(LATER_S)
    assert world.slices(TPU) == {busy.hosts[0].pod.replica} and busy.serves and busy.node.ended is None
    assert len(world.slices(CPU)) == 1 and world.most == {TPU: 2, CPU: 2} | ROUTERS
    again = world.replica(SLICE)
    world.until(lambda: again.serves, 200)
    assert world.most == {TPU: 2, CPU: 2} | ROUTERS, "one that was given back does not come by itself: it is asked for"


def test_slices_come_and_go_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(service(0, 1), monkeypatch)
    for _ in range(2):
        world.stop(served(world))
        world.until(lambda: not world.slices(TPU) and not world.slices(CPU))
    assert world.most == {TPU: 1, CPU: 1} and world.thrown_away == 0


@pytest.mark.parametrize("most", [1, 2], ids=["at its maximum", "below it"])
@pytest.mark.parametrize("grace_s", [0, 7, 150])
def test_a_lost_host_costs_no_second_slice(grace_s: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer the other hosts' Pods take to end, the longer the autoscaler sees neither the old nor the new ones."""
    world = World(service(0, most), monkeypatch)
    world.grace_s = grace_s
    replica = served(world)
    for host in (1, 0):
        before = world.slices(TPU)
        world.lose(replica, host)
        world.until(lambda: not replica.serves)
        world.until(lambda: replica.serves)
        assert world.slices(TPU).isdisjoint(before), "another slice, all of it"
    world.seconds(LATER_S)
    assert world.most == {TPU: 1, CPU: 1} | (ROUTERS if most > 1 else {})
    assert len(world.slices(TPU)) == 1 and world.thrown_away == 0


def test_a_slow_host_of_the_next_slice_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the others may be idle: somebody must be seen to need them."""
    world = World(service(0, 2), monkeypatch)
    replica = served(world)
    world.start_s = {1: 2 * LATER_S}
    world.lose(replica)
    world.until(lambda: not replica.serves)
    world.until(lambda: replica.serves)
    assert world.most == {TPU: 1, CPU: 1} | ROUTERS and world.thrown_away == 0


def test_a_lost_host_of_one_slice_while_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(service(1, 2), monkeypatch)
    world.grace_s = 60
    first = served(world)
    second = world.replica(SLICE)
    world.seconds(12)
    world.lose(first)
    world.until(lambda: first.serves and second.serves)
    world.seconds(LATER_S)
    assert world.most[TPU] == 2 and len(world.slices(TPU)) == 2


@pytest.mark.parametrize("grace_s", [0, 7, 150])
def test_fixed_slices_stay_as_they_are_beside_others_that_scale(grace_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(beside_one_that_scales(LLMConfig(slice=SLICE)), monkeypatch)
    world.grace_s = grace_s
    replica = served(world)
    world.lose(replica)
    world.until(lambda: not replica.serves)
    world.until(lambda: replica.serves)
    world.stop(replica)
    world.seconds(2000)
    assert len(world.slices(TPU)) == 1 and world.most[TPU] == 1, "there whether it is used or not"


def test_a_cells_slices_wait_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(beside_one_that_scales(CellConfig(slice=SLICE, min_replicas=2, max_replicas=2)), monkeypatch)
    world.seconds(2000)
    assert len(world.slices(TPU)) == 2 and world.most[TPU] == 2 and world.thrown_away == 0


def replaced_while_it_starts(world: World) -> set[str]:
    """A slice's first host dies as soon as it is up. Its second joins Ray two seconds before its Pod is gone.

    Ray's autoscaler may then see that one for the first time when the next slice's Pods are there: it counts them all.
    Returns the name of that next slice.
    """
    world.grace_s, world.noticed_s, world.start_s = 10, 60, {0: 20, 1: 29}

    def joined(host: int) -> list[Any]:
        return [node for node in world.nodes if node.pod.group == TPU and node.pod.host == host]

    world.until(lambda: bool(joined(0)))
    del world.pods[joined(0)[0].pod.name]
    world.until(lambda: bool(joined(1)))
    assert joined(1)[0].pod.terminating_since is not None
    world.until(lambda: bool(world.slices(TPU)))
    return world.slices(TPU)


@pytest.mark.parametrize("moment", range(5))
def test_a_host_that_joins_late_takes_none_from_the_next_slice(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(beside_one_that_scales(LLMConfig(slice=SLICE)), monkeypatch, begins=moment)
    following = replaced_while_it_starts(world)
    world.seconds(LATER_S)
    assert world.slices(TPU) == following and world.most[TPU] == 1


def test_why_the_bounds_must_not_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bounds that the config says, the next slice loses its hosts, or a second one is bought."""
    kept = []
    for moment in range(5):  # since the autoscaler last looked
        world = World(beside_one_that_scales(LLMConfig(slice=SLICE)), monkeypatch, begins=moment)
        world.groups[TPU].update(minReplicas=1, maxReplicas=1)
        following = replaced_while_it_starts(world)
        world.seconds(60)
        kept.append(world.slices(TPU) == following)
    assert not all(kept)

    world = World(service(1, 2), monkeypatch)
    world.groups[TPU].update(minReplicas=1, maxReplicas=2)
    world.grace_s = 30
    replica = served(world)
    world.lose(replica)
    world.until(lambda: not replica.serves)
    world.until(lambda: replica.serves)
    assert world.most[TPU] == 2


def test_a_slice_of_more_hosts_than_ray_launches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixteen, Ray asks for ten and then for six: neither is a slice, and both are forgotten."""
    large = service(0, 1, "v5e:8x8")
    world = World(large, monkeypatch)
    replica = world.replica("v5e:8x8")
    world.until(lambda: replica.serves)
    assert world.most["tpu-v5e-8x8"] == 1
    world = World(large, monkeypatch, autoscaler_env=False)
    world.replica("v5e:8x8")
    world.seconds(1000)
    assert world.most["tpu-v5e-8x8"] == 0, "without AUTOSCALER_MAX_CONCURRENT_LAUNCHES"


def test_applications_with_different_slices_do_not_stand_in_each_others_way(monkeypatch: pytest.MonkeyPatch) -> None:
    applications = [
        Application(config=LLMConfig(slice=slice, min_replicas=0, max_replicas=2), name=name, route_prefix=f"/{name}")
        for name, slice in (("one", SLICE), ("two", "v6e:4x4"))
    ]
    world = World(Service(name="s", applications=applications), monkeypatch)
    replicas = [world.replica(slice) for slice in (SLICE, "v6e:4x4", SLICE, "v6e:4x4")]
    world.until(lambda: all(replica.serves for replica in replicas), 200)
    world.seconds(LATER_S)
    bought = dict.fromkeys((TPU, CPU, "tpu-v6e-4x4", "cpu-v6e-4x4"), 2) | {"routers": 4}
    assert world.most == bought and all(replica.serves for replica in replicas)


def test_several_that_wait_take_hosts_of_one_slice_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their wishes come true on hosts of different slices, at the worst: nobody keeps those."""
    world = World(service(0, 4), monkeypatch)
    world.start_s = {0: 20, 1: 45}
    replicas = [world.replica(SLICE) for _ in range(4)]
    world.until(lambda: all(replica.serves for replica in replicas), 300)
    assert all(len({node.pod.replica for node in replica.hosts}) == 1 for replica in replicas)
    world.seconds(LATER_S)
    assert world.most == {TPU: 4, CPU: 4} | ROUTERS


def reconcile_config(env: dict[str, str]) -> str:
    """Ray reads it when it is imported."""
    script = "from ray.autoscaler.v2.instance_manager.config import *; print(InstanceReconcileConfig())"
    return subprocess.run([sys.executable, "-c", script], env=os.environ | env, text=True, stdout=-1, check=True).stdout


@pytest.mark.parametrize("ours", [True, False], ids=["as rendered", "Ray's default"])
def test_pods_keep_their_place_in_the_queue_for_capacity(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours without a machine, which flex-start may well take."""
    world = World(service(0, 1, capacity=FlexStart(max_run_hours=5)), monkeypatch)
    env = {entry["name"]: entry["value"] for entry in world.cluster["spec"]["autoscalerOptions"]["env"]}
    told = reconcile_config(env if ours else {})
    timeout = int(told.partition("allocate_status_timeout_s=")[2].partition(",")[0])
    monkeypatch.setattr(v2_config.AutoscalingConfig, "get_instance_reconcile_config", lambda self: patience(timeout))
    world.start_s = {0: 10_000, 1: 10_000}
    world.replica(SLICE)
    world.until(lambda: bool(world.slices(TPU)))
    world.seconds(10)
    queued = world.slices(TPU)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 2 * 3600 * 10**9)
    world.seconds(60)
    assert (world.slices(TPU) == queued) == ours
    assert bool(world.thrown_away) != ours


def patience(timeout_s: int) -> Any:
    return v2_config.InstanceReconcileConfig(allocate_status_timeout_s=timeout_s)
