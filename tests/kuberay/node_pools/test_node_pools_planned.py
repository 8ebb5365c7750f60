"""Which pools a config gets, and that gcloud's flags for them never contradict each other."""

import math
import re
import subprocess
from collections.abc import Iterator

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from kuberay.node_pools import commands, pools, teardown
from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError, catalog, load
from ray_configs.service import Application, Service
from ray_configs.tpu import GENERATIONS, TpuSlice, every_slice

CAPACITIES = (OnDemand(), Spot(), Reservation(name="mine"), FlexStart(), Queued())
ZONAL = GoogleCloud(location="us-east5-b")
REGIONAL = GoogleCloud(location="us-east5", zones=("us-east5-a", "us-east5-b"))


def job(slice: TpuSlice, capacity: Capacity = CAPACITIES[0], **more) -> Job:
    return Job(name="work", command=("true",), slice=slice, capacity=capacity, **{"cloud": ZONAL, **more})


def service(slice: str, least: int, most: int, capacity: Capacity = CAPACITIES[0], **more) -> Service:
    app = Application(config=LLMConfig(slice=slice, min_replicas=least, max_replicas=most), capacity=capacity)
    return Service(**{"name": "chat", "applications": (app,), "cloud": ZONAL, **more})


def flags_of(config: Job | Service) -> dict[str, str | bool]:
    """Flags of the command that creates the config's one pool."""
    (command,) = re.findall(r"node-pools create (.*)", commands(config).replace("\\\n", ""))
    given = re.findall(r" --([\w-]+)(?:=(\S+))?", command)
    assert len({name for name, _ in given}) == len(given)
    return {name: value or True for name, value in given}


def sold(slice: TpuSlice, capacity: Capacity) -> bool:
    return slice.machine.dynamic_workload_scheduler or not isinstance(capacity, FlexStart | Queued)


def every_job() -> Iterator[Job]:
    for slice in every_slice():
        for capacity in CAPACITIES:
            if sold(slice, capacity):
                yield job(slice, capacity)
            else:
                with pytest.raises(ValidationError):
                    job(slice, capacity)


@pytest.mark.slow
def test_every_slice_every_way_of_buying_it() -> None:
    for config in every_job():
        slice, scheduled = config.slice, isinstance(config.capacity, FlexStart | Queued)
        (pool,) = pools(config)
        flags = flags_of(config)
        assert len(pool.name) <= 40
        assert flags["machine-type"] == slice.machine_type
        nodes = int(flags["max-nodes"] if scheduled else flags["num-nodes"])
        assert nodes * slice.machine.chips == math.prod(int(length) for length in slice.topology.split("x"))
        # The shape is said once, and only where it does not follow from the machine.
        said = [name for name in ("tpu-topology", "placement-policy") if name in flags]
        wanted = "placement-policy" if slice.facts.workload_policy else "tpu-topology"
        assert said == ([] if slice.single_host else [wanted])
        assert flags.get("tpu-topology", slice.topology) == slice.topology
        # Bought in exactly one way.
        bought = {name for name in ("spot", "flex-start", "reservation") if name in flags}
        kind = config.capacity.kind
        assert bought == {"spot": {"spot"}, "on-demand": set(), "reservation": {"reservation"}}.get(
            kind, {"flex-start"}
        )
        assert flags["reservation-affinity"] == ("specific" if kind == "reservation" else "none")
        assert ("enable-queued-provisioning" in flags) == (kind == "queued")
        # The autoscaler's flags come together, and scheduled pools start at nothing.
        scaling = {"enable-autoscaling", "min-nodes", "max-nodes"} & flags.keys()
        assert scaling == ({"enable-autoscaling", "min-nodes", "max-nodes"} if scheduled else set())
        assert not scheduled or (flags["num-nodes"], flags["min-nodes"]) == ("0", "0")


def test_bash_accepts_every_kind_of_script() -> None:
    shapes = {(c.slice.generation, c.slice.single_host, c.capacity.kind): c for c in every_job()}
    assert {shape[0] for shape in shapes} == set(GENERATIONS)
    for config in shapes.values():
        for script in (commands(config), teardown(config)):
            checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
            assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("path", catalog())
def test_the_catalog_renders_and_the_same_twice(path: str, run) -> None:
    config = load(path)
    assert commands(config) == commands(config)
    ran = run(commands(config), HF_TOKEN="t")
    assert ran.status == 0, ran.said
    assert len(ran.made("container node-pools create")) == len(pools(config))


def test_an_elastic_group_of_single_hosts_is_one_pool() -> None:
    (pool,) = pools(service("v5e:2x2", 1, 4, Spot()))
    assert (pool.name, pool.nodes, pool.max_nodes) == ("chat-v5e-2x2", 1, 4)


def test_replicas_down_to_none_let_the_pool_shrink_to_none() -> None:
    flags = flags_of(service("v5e:2x2", 0, 2))
    assert (flags["num-nodes"], flags["min-nodes"]) == ("0", "0")


def test_an_elastic_group_of_several_hosts_keeps_its_minimum_and_scales_whole_slices() -> None:
    planned = pools(service("v5e:4x8", 1, 3))
    assert [(pool.name, pool.nodes, pool.max_nodes) for pool in planned] == [
        ("chat-v5e-4x8-0", 8, 8),
        ("chat-v5e-4x8-1", 0, 8),
        ("chat-v5e-4x8-2", 0, 8),
    ]
    assert [pool.autoscaled for pool in planned] == [False, True, True]


@pytest.mark.parametrize(
    ("slice", "least", "most", "expected"),
    [
        ("v5e:2x2", 3, 5, [("chat-v5e-2x2-0", "a", 2, 3), ("chat-v5e-2x2-1", "b", 1, 2)]),
        ("v5e:2x2", 1, 1, [("chat-v5e-2x2-0", "a", 1, 1)]),
        (
            "v5e:4x4",
            2,
            3,
            [("chat-v5e-4x4-0", "a", 4, 4), ("chat-v5e-4x4-1", "b", 4, 4), ("chat-v5e-4x4-2", "a", 0, 4)],
        ),
    ],
)
def test_slices_are_dealt_to_the_zones_in_turn(slice: str, least: int, most: int, expected: list[tuple]) -> None:
    planned = pools(service(slice, least, most, cloud=REGIONAL))
    assert [(p.name, p.zone.removeprefix("us-east5-"), p.nodes, p.max_nodes) for p in planned] == expected


def test_preempted_machines_leave_pods_their_time(run) -> None:
    """GKE: node system configuration, `kubeletConfig`; its API: NodeKubeletConfig. Only Spot takes these, 30 or 120."""
    ran = run(commands(service("v5e:4x8", 2, 2, Spot())))
    assert [YAML(typ="safe").load(text) for text in ran.node_configs] == 2 * [
        {"kubeletConfig": {"shutdownGracePeriodSeconds": 120, "shutdownGracePeriodCriticalPodsSeconds": 15}}
    ]
    for capacity in (Spot(shutdown_s=30), OnDemand(), FlexStart()):
        assert run(commands(service("v5e:4x8", 2, 2, capacity))).node_configs == []


def test_pods_without_tpus_have_the_default_pool_or_one_bought_their_way(run) -> None:
    work = {"name": "work", "command": ("true",), "cloud": GoogleCloud(location="us-east5")}
    assert pools(Job(**work)) == ()
    assert run(commands(Job(**work))).one("container clusters create podslice").flags["total-max-nodes"] == "5"
    ran = run(commands(Job(**work, capacity=Spot())))
    pool = ran.one("container node-pools create work-cpu").flags
    assert (pool["machine-type"], pool["num-nodes"], pool["max-nodes"]) == ("n2-standard-8", "0", "1")
    assert pool["spot"] is True and len(ran.node_configs) == 1
    assert "tpu.googleapis.com" not in ran.one("services enable").words


def test_long_names_stay_apart_and_fit() -> None:
    names = {pool.name for end in "ab" for pool in pools(service("v5e:2x2", 1, 1, name="n" * 46 + end))}
    assert len(names) == 2 and all(len(name) <= 40 for name in names)


def test_a_shared_reservation_is_named_by_its_path() -> None:
    flags = flags_of(job(TpuSlice("v5e", "2x2"), Reservation(name="mine", project="owner")))
    assert flags["reservation"] == "projects/owner/reservations/mine"


def test_7x_slices_of_several_hosts_are_placed_by_one_workload_policy(run) -> None:
    ran = run(commands(service("7x:2x2x2", 2, 2, cloud=REGIONAL)))
    policy = ran.one("compute resource-policies create workload-policy chat-7x-2x2x2")
    assert policy.flags == {"type": "HIGH_THROUGHPUT", "accelerator-topology": "2x2x2", "region": "us-east5"}
    made = ran.made("container node-pools create")
    assert [pool.flags["placement-policy"] for pool in made] == ["chat-7x-2x2x2"] * 2
    assert ran.calls.index(policy) < ran.calls.index(made[0])
    zonal = run(commands(service("7x:2x2x2", 1, 1)))
    assert zonal.one("compute resource-policies create").flags["region"] == "us-east5"


@pytest.mark.parametrize(("operator", "kueue"), [("/", "0.16.9"), ("string/", "0.19.2"), ("string/object", "0.16.9")])
def test_queued_capacity_installs_the_kueue_that_suits_the_operator(run, operator: str, kueue: str) -> None:
    slice = TpuSlice("v5e", "4x4")
    (applied,) = run(commands(job(slice, Queued())), OPERATOR_MARKS=operator).made("apply")
    assert applied.flags["filename"].endswith(f"/v{kueue}/manifests.yaml")
    assert not run(commands(job(slice, Queued())), found=True).made("apply"), "there is one"
    assert not run(commands(job(slice, FlexStart()))).made("apply")


@pytest.mark.parametrize(
    ("slice", "capacity", "version", "accepted"),
    [
        ("v6e:2x2", OnDemand(), "1.31.1-gke.9999999", False),
        ("v6e:2x2", OnDemand(), "1.31.2-gke.1115000", True),
        ("7x:2x2x1", OnDemand(), "1.33", False),
        ("7x:2x2x1", OnDemand(), "1.34", True),
        ("v5e:2x2", FlexStart(), "1.32.9", False),
        ("v5e:2x2", OnDemand(), "1.29.0-gke.1", False),
        ("v5e:2x2", OnDemand(), "latest", True),
        ("v5e:2x2", Spot(), "1.34", False),
        ("v5e:2x2", Spot(), "1.35.0-gke.1171000", True),
        ("v5e:2x2", Spot(shutdown_s=30), "1.34", True),
    ],
)
def test_too_old_versions_are_refused(slice: str, capacity: Capacity, version: str, accepted: bool) -> None:
    config = job(slice, capacity, cloud=GoogleCloud(location="us-east5-b", cluster_version=version))
    if accepted:
        assert f"--cluster-version={version}" in commands(config)
    else:
        with pytest.raises(ConfigError, match=r"too old: .* needs GKE 1"):
            commands(config)


def test_a_region_without_zones_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"set cloud.zones, such as \('us-east5-a',\)"):
        commands(job(TpuSlice("v5e", "2x2"), cloud=GoogleCloud(location="us-east5")))
