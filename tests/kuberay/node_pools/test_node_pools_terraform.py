"""The Terraform configuration says the same as the script: same pools, same rights."""

import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from kuberay.node_pools import commands, pools, terraform
from ray_configs.capacity import FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.catalog import gemma_7b_it_v5e, spmd_175b, whole_graph
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job
from ray_configs.loading import catalog, load
from ray_configs.service import Service

CLOUD = GoogleCloud(location="us-east5", zones=("us-east5-b",))
JOBS = [
    Job(name="work", command=("true",), slice=slice, capacity=capacity, cloud=CLOUD)
    for slice in ("v5e:2x2", "v6e:4x4", "7x:2x2x1", "7x:2x2x2")
    for capacity in (OnDemand(), Spot(), Reservation(name="r", project="p"), FlexStart(max_run_hours=2), Queued())
]
CONFIGS = [*JOBS, *(load(path) for path in catalog())]


def resources(config: Job | Service) -> dict[str, dict[str, Any]]:
    return json.loads(terraform(config))["resource"]


@pytest.mark.parametrize("config", CONFIGS)
def test_what_is_referred_to_is_there(config) -> None:
    text = terraform(config)
    there = {f"{kind}.{name}" for kind, named in resources(config).items() for name in named}
    there |= {f"google_{kind}.{name}" for kind, name in re.findall(r"data\.google_(\w+)\.(\w+)", text)}
    referred = re.findall(r"\$\{(?:data\.)?(google_\w+\.[\w-]+)", text)
    assert referred and set(referred) <= there
    assert ("data.google_project" in text) == ("data" in json.loads(text))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_terraform_reads_it(tmp_path) -> None:
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
    for i, config in enumerate(CONFIGS):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "main.tf.json").write_text(terraform(config))
        command = ["terraform", "get", "-no-color"]
        checked = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path / str(i))
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("job", JOBS)
def test_the_pools_are_those_of_the_script(job: Job) -> None:
    script = commands(job)
    (pool,) = pools(job)
    body = resources(job)["google_container_node_pool"][pool.name]
    machine, placed, scaled = body["node_config"], body.get("placement_policy", {}), body.get("autoscaling", {})
    reserved = machine["reservation_affinity"]
    assert body["initial_node_count" if pool.autoscaled else "node_count"] == pool.nodes
    pairs = [
        ("--spot", machine.get("spot")),
        ("--flex-start", machine.get("flex_start")),
        ("--enable-queued-provisioning", body.get("queued_provisioning") == {"enabled": True}),
        ("--no-enable-autorepair", body.get("management", {}).get("auto_repair") is False),
        ("--location-policy=ANY", scaled.get("location_policy") == "ANY"),
        ("--reservation-affinity=none", reserved["consume_reservation_type"] == "NO_RESERVATION"),
        ("--reservation=projects/p/reservations/r", reserved.get("values") == ["projects/p/reservations/r"]),
        (
            "shutdownGracePeriodSeconds",  # hashicorp/google 7.39's kubelet_config
            machine.get("kubelet_config")
            == {"shutdown_grace_period_seconds": 120, "shutdown_grace_period_critical_pods_seconds": 15},
        ),
        (f"--max-nodes={pool.max_nodes}", scaled.get("max_node_count") == pool.max_nodes),
        ("--max-run-duration=7200s", machine.get("max_run_duration") == "7200s"),
        ("--tpu-topology=4x4", placed == {"type": "COMPACT", "tpu_topology": "4x4"}),
        (
            "--placement-policy=work-7x-2x2x2",
            placed.get("policy_name") == "${google_compute_resource_policy.work-7x-2x2x2.name}",
        ),
        (f"--machine-type={pool.slice.machine_type}", machine["machine_type"] == pool.slice.machine_type),
    ]
    for flag, said in pairs:
        assert (flag in script) == bool(said), flag


def test_a_slice_of_several_hosts_is_a_resource_of_its_own() -> None:
    made = resources(spmd_175b.service)["google_container_node_pool"]
    for name in ("spmd-175b-v5e-4x8-0", "spmd-175b-v5e-4x8-1"):
        assert made[name]["node_count"] == 8


def test_cluster_bucket_and_rights() -> None:
    made = resources(gemma_7b_it_v5e.service)
    cluster = made["google_container_cluster"]["cluster"]
    addons = ("ray_operator_config", "gcs_fuse_csi_driver_config")
    assert {name: body["enabled"] for name, body in cluster["addons_config"].items()} == dict.fromkeys(addons, True)
    assert cluster["workload_identity_config"] == {"workload_pool": "PROJECT_ID.svc.id.goog"}
    bucket = made["google_storage_bucket"]["bucket"]
    assert (bucket["name"], bucket["location"]) == ("BUCKET_NAME", "us-west4")
    assert made["google_storage_bucket_iam_member"]["objects"]["role"] == "roles/storage.objectUser"
    assert not any("project_iam" in kind for kind in made)
    acts_as = made["google_service_account_iam_member"]["workload_identity"]
    assert acts_as["for_each"] == '${toset(["podslice"])}'
    assert acts_as["member"].endswith(".workload_pool}[default/${each.value}]")
    heads = resources(whole_graph.service)["google_service_account_iam_member"]["workload_identity"]
    assert heads["for_each"] == '${toset(["podslice", "podslice-head"])}'


def test_strings_mean_what_they_say() -> None:
    cloud = GoogleCloud(location="us-east5", zones=("${z}%{y}-a", "us-east5-b"))
    written = terraform(Job(name="work", command=("true",), cloud=cloud))
    made = json.loads(written)
    cluster = made["resource"]["google_container_cluster"]["cluster"]
    assert cluster["node_locations"] == ["$${z}%%{y}-a", "us-east5-b"]
    assert cluster["deletion_protection"] is False and cluster["initial_node_count"] == 1
    assert made["resource"]["google_project_service"]["apis"]["service"] == "${each.value}.googleapis.com"
