"""What KubeRay, GKE's device plugin and the TPU webhook make of the manifests that `render` writes."""

import pytest

from kuberay.local.dashboard import DashboardNode, differences
from kuberay.local.hosts import HostsPlan, plan_of
from kuberay.render import render
from ray_configs.cloud import HUGGING_FACE_TOKEN
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.service import Application, Service
from ray_configs.tpu import every_slice

ADDRESS = "127.31.64.1"


def planned(service: Service, **options: object) -> HostsPlan:
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    return plan_of(manifest, address=ADDRESS, **options)


def with_slice(slice: str | None, **config: object) -> Service:
    return Service(name="s", applications=(Application(config=LLMConfig(slice=slice, **config)),))


def test_two_slices_of_eight_hosts():
    plan = planned(load("ray_configs.catalog.spmd_175b"))
    names = ["tpu-v5e-4x8-0", "tpu-v5e-4x8-1", "cpu-v5e-4x8-0", "cpu-v5e-4x8-1", "routers-0", "routers-1"]
    assert [slice.name for slice in plan.slices] == names
    assert [len(slice.hosts) for slice in plan.slices] == [8, 8, 1, 1, 1, 1] and len(plan.hosts) == 21
    host = plan.slices[1].hosts[3]
    assert (host.name, host.chips, host.cpus, host.memory) == ("tpu-v5e-4x8-1-3", 4, 0, 153 * 10**9)
    assert host.env["TPU_NAME"] == "tpu-v5e-4x8-1" and host.env["TPU_WORKER_ID"] == "3"
    assert host.env["TPU_TOPOLOGY"] == "4x8" and host.env["TPU_ACCELERATOR_TYPE"] == "v5litepod-32"
    assert host.env["TPU_WORKER_HOSTNAMES"] == ",".join([ADDRESS] * 8)
    assert host.env["RAY_SERVE_ENABLE_HA_PROXY"] == "1"  # the manifest's own
    assert host.seen_labels == {
        "ray.io/accelerator-type": "TPU-V5LITEPOD",
        "ray.io/tpu-pod-type": "v5litepod-32",
        "ray.io/tpu-topology": "4x8",
        "ray.io/tpu-slice-name": "tpu-v5e-4x8-1",
        "ray.io/tpu-worker-id": "3",
        "ray.io/node-group": "tpu-v5e-4x8",
    }
    assert host.seen_resources == {
        "memory": 153e9,
        "TPU": 4,
        "tpu-v5e-4x8-1": 1,
        "accelerator_type:TPU-V5LITEPOD": 1,
    }
    assert plan.slices[1].hosts[0].seen_resources["TPU-v5litepod-32-head"] == 1


def test_the_processes_that_lead_slices_have_a_pod_each():
    process = planned(load("ray_configs.catalog.spmd_175b")).slices[3].hosts[0]
    assert (process.name, process.chips, process.cpus) == ("cpu-v5e-4x8-1-0", 0, 2)
    assert process.seen_labels == {"podslice/group": "cpu-v5e-4x8", "ray.io/node-group": "cpu-v5e-4x8"}
    assert process.env["PODSLICE_GROUPS_LABELLED"] == "1"


def test_the_head_has_no_cpus_for_replicas():
    head = planned(with_slice(None)).head
    assert (head.cpus, head.memory, head.chips) == (0, 8 * 10**9, 0)
    assert head.seen_resources == {"memory": 8e9} and head.seen_labels == {"ray.io/node-group": "headgroup"}


def test_a_cpu_worker():
    plan = planned(with_slice(None, num_cpus=3.2))
    (host,) = plan.slices[0].hosts
    assert host.name == "cpu-0-0" and host.cpus == 4 and not host.chips and "TPU_NAME" not in host.env


@pytest.mark.parametrize(
    "slice", [slice for slice in every_slice() if slice.ray_refusal is None and slice.hosts <= 16], ids=str
)
def test_every_slice_looks_to_ray_as_the_table_says(slice):
    plan = planned(with_slice(str(slice), min_replicas=2, max_replicas=2, routers=0))
    assert len(plan.slices) == (2 if slice.hosts == 1 else 4)
    for running in plan.slices[:2]:
        assert len(running.hosts) == slice.hosts
        assert [host.env["TPU_WORKER_ID"] for host in running.hosts] == [str(i) for i in range(slice.hosts)]
        for host in running.hosts:
            assert host.chips == slice.chips_per_host and dict(host.labels) == slice.ray_labels
            assert (slice.ray_head_resource in host.seen_resources) == (host.env["TPU_WORKER_ID"] == "0")
            assert ("TPU_WORKER_HOSTNAMES" in host.env) == (slice.hosts > 1)


@pytest.mark.parametrize("slice", ["v6e:4x4", "v5e:2x2", "v4:2x2x2", "7x:2x2x1"])
def test_ray_itself_makes_the_same_of_that_environment(slice, monkeypatch):
    """Ray's own code, on the environment and the command line of each host, without a cluster."""
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    for host in planned(with_slice(slice)).slices[0].hosts:
        for name, value in host.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(TPUAcceleratorManager, "get_current_node_num_accelerators", lambda chips=host.chips: chips)
        resources = TPUAcceleratorManager.get_current_node_additional_resources()
        expected = {name for name in host.seen_resources if "TPU-" in name and ":" not in name} | {host.env["TPU_NAME"]}
        assert resources.keys() == expected
        labels = TPUAcceleratorManager.get_current_node_accelerator_labels()
        assert labels.items() <= host.seen_labels.items() and labels["ray.io/tpu-worker-id"]


def test_a_group_that_scales_begins_with_one_slice_or_as_many_as_asked():
    service = with_slice("v5e:2x2", min_replicas=0, max_replicas=3, routers=0)
    assert len(planned(service).slices) == 1
    assert len(planned(service, replicas=2).slices) == 2
    assert len(planned(service, replicas=9).slices) == 3
    assert len(planned(with_slice("v5e:2x2", min_replicas=2, max_replicas=2, routers=0), replicas=1).slices) == 2


def test_slices_of_several_hosts_come_with_as_many_processes():
    service = with_slice("v5e:4x8", min_replicas=0, max_replicas=3, routers=2)
    for replicas, count in ((None, 1), (2, 2), (9, 3)):
        groups = [slice.hosts[0].group for slice in planned(service, replicas=replicas).slices]
        assert groups == ["tpu-v5e-4x8"] * count + ["cpu-v5e-4x8"] * count + ["routers"] * 2


def test_secrets_come_from_this_machines_environment():
    service = Service(name="s", applications=(Application(config=LLMConfig()),), hugging_face_token=HUGGING_FACE_TOKEN)
    without, given = planned(service), planned(service, environment={"HF_TOKEN": "hf_1", "OTHER": "x"})
    assert without.absent == ("HF_TOKEN",) and "HF_TOKEN" not in without.slices[0].hosts[0].env
    env = given.slices[0].hosts[0].env
    assert not given.absent and env["HF_TOKEN"] == "hf_1" and "OTHER" not in env


def test_values_that_name_other_variables():
    host = planned(with_slice("v6e:4x4")).slices[0].hosts[2]
    assert host.env["NODE_IP"] == ADDRESS and host.env["VBAR_CONTROL_SERVICE_URL"] == f"{ADDRESS}:8353"


def test_the_token_is_the_manifests():
    assert planned(with_slice(None)).token
    open_one = with_slice(None).model_dump(exclude_unset=True) | {"observability": {"dashboard_auth": "disabled"}}
    assert not planned(Service(**open_one)).token


@pytest.mark.parametrize("name", catalog())
def test_the_catalog_is_planned(name):
    config = load(name)
    if isinstance(config, Service):
        plan = planned(config)
        groups = {group.name: group for group in config.worker_groups}
        assert {host.group for slice in plan.slices for host in slice.hosts} == set(groups)
        assert plan.serve_config == render_serve_config(config)


def render_serve_config(service: Service) -> str:
    from kuberay.render import serve_config, to_yaml

    return to_yaml([serve_config(service)])


def test_differences_are_named():
    plan = planned(with_slice("v5e:2x4:4t"))
    own = {"node:127.31.64.1": 1.0, "object_store_memory": 1.0}
    nodes = {
        host.name: DashboardNode(host.seen_labels | {"ray.io/node-id": "1"}, host.seen_resources | own)
        for host in plan.hosts
    }
    assert differences(plan.hosts, nodes) == []
    first, second = plan.slices[0].hosts
    del nodes[first.name].resources["TPU-v5litepod-8-head"]
    nodes[second.name].labels["ray.io/tpu-worker-id"] = "0"
    nodes["stranger"] = nodes.pop("head")
    assert differences(plan.hosts, nodes) == [
        "head: label ray.io/node-group is headgroup on GKE, and not here",
        "head: resource memory is 8000000000.0 on GKE, and not here",
        f"{first.name}: resource TPU-v5litepod-8-head is 1.0 on GKE, and not here",
        f"{second.name}: label ray.io/tpu-worker-id is 1 on GKE, and not here",
        "stranger: label ray.io/node-group is headgroup here, and not on GKE",
        "stranger: resource memory is 8000000000.0 here, and not on GKE",
        f"{second.name}: label ray.io/tpu-worker-id is 0 here, and not on GKE",
    ]
