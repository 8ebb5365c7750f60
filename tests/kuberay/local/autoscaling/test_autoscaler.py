"""Slices that come and go as Ray's autoscaler asks.

What it asks for, and reads, is Ray's own: its provider for KubeRay, here over files. The emulated cluster follows as
KubeRay does: `reconcilePods` of its RayCluster controller deletes `workersToDelete` before it counts, and with a host
its whole slice.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider
from ray.autoscaler.v2.instance_manager.node_provider import NodeKind

from apps.serving.machines.autoscaler import KubernetesFiles, patched
from kuberay.local import LocalError, cluster
from kuberay.local.autoscaling import autoscaler
from kuberay.local.autoscaling.objects import LocalPod, ObjectFiles
from kuberay.local.hosts import HostsPlan, plan_of
from kuberay.local.scaling_down import scale_down
from kuberay.render import render
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kuberay.local.test_failed_starts import FakeRaylet

GROUP = "tpu-v5e-2x4-4t"


def scaling(**fields: Any) -> Service:
    sizes = {"slice": "v5e:2x4:4t", "min_replicas": 0, "max_replicas": 2} | fields
    llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", **sizes)
    return Service(name="scaling", applications=(Application(config=llm),))


def plan(service: Service | None = None, **options: Any) -> HostsPlan:
    manifest = next(item for item in render(service or scaling()) if item["kind"] == "RayService")
    return plan_of(manifest, address="127.0.0.2", **{"autoscaled": True} | options)


def pods(*names: str, up: bool = True) -> list[LocalPod]:
    return [LocalPod("head", "headgroup", "head", True), *(LocalPod(name, GROUP, "worker", up) for name in names)]


def provided(files: ObjectFiles) -> KubeRayProvider:
    client = KubernetesFiles(files.ray_cluster, files.pods)
    return KubeRayProvider("scaling", {"namespace": "default"}, None, client)


@pytest.fixture
def files(tmp_path: Path) -> ObjectFiles:
    written = ObjectFiles(tmp_path / "objects", plan().ray_cluster or {})
    written.show(pods())
    return written


def test_rays_provider_sees_the_hosts(files: ObjectFiles) -> None:
    files.show([*pods("a"), *pods("b", up=False)[1:]])
    provider = provided(files)
    provider._sync_with_api_server()
    seen = {name: (host.node_type, host.node_kind, host.is_running) for name, host in provider.instances.items()}
    assert seen == {
        "head": ("headgroup", NodeKind.HEAD, True),
        "a": (GROUP, NodeKind.WORKER, True),
        "b": (GROUP, NodeKind.WORKER, False),
    }


def test_what_rays_provider_launches_and_ends_is_wanted(files: ObjectFiles) -> None:
    provider = provided(files)

    def now() -> tuple[int, frozenset[str]]:
        found = files.wanted()
        return found.replicas[GROUP], found.unwanted

    assert now() == (0, frozenset())
    provider.launch({GROUP: 4}, "first")
    assert now() == (2, frozenset()), "two hosts are a slice"
    hosts = [f"{GROUP}-{slice}-{host}" for slice in range(2) for host in range(2)]
    files.show(pods(*hosts))
    provider.terminate(hosts[:2], "second")
    assert now() == (1, frozenset(hosts[:2]))
    files.show(pods(*hosts[2:]))
    provider.launch({GROUP: 2}, "third")
    assert now() == (2, frozenset()), "Ray clears the list once its hosts are gone"
    assert provider.poll_errors() == []


def test_rays_autoscaler_reads_its_config_from_the_ray_cluster() -> None:
    config = _derive_autoscaling_config_from_ray_cr(copy.deepcopy(dict(plan(idle_s=15).ray_cluster or {})))
    assert config["idle_timeout_minutes"] == 0.25 and config["provider"]["namespace"] == "default"
    types = config["available_node_types"]
    assert types[GROUP]["resources"]["TPU"] == 4 and types[GROUP]["max_workers"] >= 4


def test_only_a_group_that_scales_may_begin_with_none() -> None:
    assert not any(slice.chips for slice in plan().slices)
    assert sum(bool(slice.chips) for slice in plan(replicas=1).slices) == 1
    assert sum(bool(slice.chips) for slice in plan(autoscaled=False).slices) == 1
    with pytest.raises(LocalError, match=r"nothing of scaling scales: set max_replicas above min_replicas"):
        plan(scaling(min_replicas=1, max_replicas=1))


def test_a_drill_from_zero_needs_a_service_that_goes_there() -> None:
    (app,) = scale_down(scaling(), soon_zero=True).service.applications
    assert app.config.zero_after_s == 15
    with pytest.raises(LocalError, match=r"--from-zero: .* keeps 1 slices: set min_replicas=0"):
        scale_down(scaling(min_replicas=1), soon_zero=True)


def test_other_patches_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="a JSON Patch with add"):
        patched({}, [{"op": "add", "path": "/a", "value": 1}])


class Process:
    """A process that runs until it is killed."""

    pid, status = 1, None

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.status = -9

    def wait(self) -> None:
        pass


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> cluster.EmulatedCluster:
    """An autoscaled cluster whose hosts are played."""
    monkeypatch.setattr(FakeRaylet, "failures", {}, raising=False)
    monkeypatch.setattr(FakeRaylet, "run", lambda self, *command, stdin: Process(), raising=False)
    monkeypatch.setattr(cluster, "Raylet", FakeRaylet)
    monkeypatch.setattr(cluster, "RECREATE_DELAY_S", 0)
    monkeypatch.setattr(cluster.container, "become_subreaper", lambda: None)
    monkeypatch.setattr(cluster.container, "descendants", lambda root, besides: iter(()))
    site = cluster.Site("127.0.0.2", tmp_path, 1, 2, 3, None)
    emulated = cluster.EmulatedCluster(plan(), site, iter(()), lambda said: None)
    ticks(emulated)
    return emulated


def ticks(emulated: cluster.EmulatedCluster) -> None:
    for _ in range(10):
        emulated.tick(set)


def slices(emulated: cluster.EmulatedCluster) -> list[str]:
    return [running.slice.name for running in emulated.slices if running.slice.chips]


def rays(emulated: cluster.EmulatedCluster) -> KubeRayProvider:
    assert emulated._autoscaler is not None
    return provided(emulated._autoscaler._files)


def test_slices_come_and_go_whole(emulated: cluster.EmulatedCluster) -> None:
    provider = rays(emulated)
    assert emulated.ready and slices(emulated) == []
    provider.launch({GROUP: 4}, "first")
    ticks(emulated)
    assert emulated.ready and slices(emulated) == [f"{GROUP}-0", f"{GROUP}-1"]
    provider.terminate([f"{GROUP}-0-1"], "second")  # one host: KubeRay deletes what belongs to it
    ticks(emulated)
    assert emulated.ready and slices(emulated) == [f"{GROUP}-1"]
    provider.terminate([f"{GROUP}-1-0", f"{GROUP}-1-1"], "third")
    ticks(emulated)
    assert slices(emulated) == []


def test_a_name_that_is_still_unwanted_is_not_given_again(emulated: cluster.EmulatedCluster) -> None:
    provider = rays(emulated)
    provider.launch({GROUP: 2}, "first")
    ticks(emulated)
    provider.terminate([f"{GROUP}-0-0", f"{GROUP}-0-1"], "second")
    ticks(emulated)
    assert emulated._autoscaler is not None
    file = emulated._autoscaler._files.ray_cluster
    still = json.loads(file.read_text())
    for group in still["spec"]["workerGroupSpecs"]:
        group["replicas"] = 1
    file.write_text(json.dumps(still))
    ticks(emulated)
    assert emulated.ready and slices(emulated) == [f"{GROUP}-1"]


def test_a_lost_slice_is_replaced_and_one_that_is_unwanted_is_not(emulated: cluster.EmulatedCluster) -> None:
    provider = rays(emulated)
    provider.launch({GROUP: 2}, "first")
    ticks(emulated)
    emulated.kill(f"{GROUP}-0:1")
    ticks(emulated)
    assert emulated.ready and slices(emulated) == [f"{GROUP}-0"]
    emulated.kill(f"{GROUP}-0:0")
    provider.terminate([f"{GROUP}-0-0", f"{GROUP}-0-1"], "second")
    ticks(emulated)
    assert slices(emulated) == []


def test_the_autoscaler_starts_anew_with_each_head(emulated: cluster.EmulatedCluster) -> None:
    before = emulated._autoscaler
    assert before is not None and before._process is not None
    first = before._process
    emulated.head.stop()
    ticks(emulated)
    assert before._process is not first and first.poll() == -9


def test_an_autoscaler_that_ends_is_started_thrice(emulated: cluster.EmulatedCluster) -> None:
    scaler = emulated._autoscaler
    assert scaler is not None
    for _ in range(autoscaler.ATTEMPTS - 1):
        assert scaler._process is not None
        scaler._process.kill()
        ticks(emulated)
    assert scaler._process is not None
    scaler._process.kill()
    with pytest.raises(cluster.ServiceFailed, match="Ray's autoscaler ended 3 times"):
        ticks(emulated)
