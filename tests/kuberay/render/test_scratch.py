"""Local disk: what is fetched from the hub must fit into what a Pod may fill, and that onto its node."""

import pytest
from pydantic import ValidationError

from kuberay.node_pools import commands, pools, terraform
from kuberay.node_pools.pools import disk_gb
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kuberay.render.rendered import cluster

CLOUD = GoogleCloud(location="us-west4-a")
LARGE = "meta-llama/Meta-Llama-3-70B"


def serving(model: str, slice: str | None = "v6e:4x4", scratch_gb: int | None = None, **more: bool) -> Service:
    app = Application(config=LLMConfig(model=model, slice=slice, **more), scratch_gb=scratch_gb)
    return Service(name="s", applications=(app,), cloud=CLOUD)


def scratch(config: Service) -> list[int]:
    """Of each group's Pods, 10^9 bytes."""
    limits = [
        group["template"]["spec"]["containers"][0]["resources"]["limits"]
        for group in cluster(config)["workerGroupSpecs"]
    ]
    return [int(limit["ephemeral-storage"].removesuffix("G")) for limit in limits]


def test_a_large_model_of_the_hub_has_room_on_every_host_and_disk() -> None:
    config = serving(LARGE)
    assert scratch(config) == [164, 10], "140 GB, a tenth more, and 10 for the rest; none where no weights are loaded"
    (pool,) = pools(config)
    assert f"--disk-size={pool.disk_gb}" in commands(config) and pool.disk_gb == 300
    assert f'"disk_size_gb": {pool.disk_gb},' in terraform(config)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("meta-llama/Meta-Llama-3-8B", {}),
        ("gs://bucket/Meta-Llama-3-70B", {}),
        ("/gcs-70B/model", {}),
        (LARGE, {"random_weights": True}),
        ("someone/of-unknown-size", {}),
    ],
)
def test_what_is_small_or_read_where_it_lies_needs_no_larger_disk(model: str, more: dict[str, bool]) -> None:
    config = serving(model, **more)
    assert scratch(config)[0] == 40
    assert "--disk-size" not in commands(config) and "disk_size_gb" not in terraform(config)


def test_too_little_scratch_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"scratch_gb=100 is too little.*about 140 GB.*Set 164 or more"):
        serving(LARGE, scratch_gb=100)
    assert scratch(serving(LARGE, scratch_gb=200))[0] == 200
    cell = Application(config=CellConfig(slice="v5e:4x8"), scratch_gb=90)
    assert scratch(Service(name="s", applications=(cell,))) == [90, 10]


def test_applications_that_share_hosts_share_the_larger_scratch() -> None:
    apps = [
        Application(config=LLMConfig(model=model, slice="v5e:2x4:8t"), name=f"m{i}", route_prefix=f"/{i}")
        for i, model in enumerate(("google/gemma-7b", "Qwen/Qwen2.5-32B"))
    ]
    assert scratch(Service(name="s", applications=tuple(apps))) == [81]


def test_pods_without_tpus_leave_the_default_pool_when_its_disks_are_too_small() -> None:
    assert pools(serving("Qwen/Qwen2.5-7B", slice=None)) == ()
    (pool,) = pools(serving("Qwen/Qwen2.5-32B", slice=None))
    assert (pool.slice, pool.nodes, pool.max_nodes) == (None, 0, 1) and pool.disk_gb > 100
    assert pools(Job(name="j", command=("true",), scratch_gb=40, cloud=CLOUD)) == ()
    (pool,) = pools(Job(name="j", command=("true",), scratch_gb=400, cloud=CLOUD))
    assert f"--disk-size={pool.disk_gb}" in commands(Job(name="j", command=("true",), scratch_gb=400, cloud=CLOUD))


@pytest.mark.parametrize("scratch_gb", [10, 40, 60, 100, 164, 300, 1000])
@pytest.mark.parametrize("bucket", [None, Bucket(name="weights"), Bucket(name="weights", mount=None)])
def test_a_disk_leaves_what_was_asked_for(scratch_gb: int, bucket: Bucket | None) -> None:
    """By GKE's reservation: 10 % for eviction, and the least of half, 35 % and 6 GiB, and 100 GiB for the system; and
    the 5 GiB that the Cloud Storage FUSE sidecar requests by default where a bucket is mounted."""

    def left(disk: float) -> float:
        gib = disk - 0.1 * disk - min(disk / 2, 0.35 * disk + 6, 100)
        return gib * 2**30 / 1e9

    job = Job(name="j", command=("true",), scratch_gb=scratch_gb, bucket=bucket, cloud=CLOUD)
    sidecar = 5 * 2**30 / 1e9 if bucket is not None and bucket.mount else 0
    disk = disk_gb(job, job.worker_groups[0])
    assert left(disk) >= scratch_gb + sidecar and (disk == 100 or left(disk - 25) < scratch_gb + sidecar)
