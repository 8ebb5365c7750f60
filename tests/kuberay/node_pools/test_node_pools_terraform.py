"""The HCL says the same as the script: same pools, same rights, and a text that Terraform reads."""

import os
import re
import shutil
import subprocess

import pytest

from kuberay.node_pools import commands, pools, terraform
from kuberay.node_pools.hcl import literal
from ray_configs.capacity import FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.catalog import gemma_7b_it_v5e, spmd_175b, whole_graph
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job
from ray_configs.loading import catalog, load

TOKEN = re.compile(r'"(?:[^"\\$\n]|\\.|\$\$\{|\$\{[^"}]*\}|\$(?!\{))*"|#[^\n]*|[{}\[\]()=,]|[^\s{}\[\]()=,"#]+|\s+')
CLOUD = GoogleCloud(location="us-east5", zones=("us-east5-b",))
JOBS = [
    Job(name="work", command=("true",), slice=slice, capacity=capacity, cloud=CLOUD)
    for slice in ("v5e:2x2", "v6e:4x4", "7x:2x2x1", "7x:2x2x2")
    for capacity in (OnDemand(), Spot(), Reservation(name="r", project="p"), FlexStart(max_run_hours=2), Queued())
]
CONFIGS = [*JOBS, *(load(path) for path in catalog())]


def tokens(text: str) -> list[str]:
    found = TOKEN.findall(text)
    assert "".join(found) == text, "something is no token: an open string?"
    return [token for token in found if not token.isspace() and not token.startswith("#")]


def node_pool(text: str, name: str) -> str:
    """One resource's text, with single spaces."""
    body = text.split(f'resource "google_container_node_pool" "{name}" {{')[1].split("\n}\n")[0]
    return re.sub(r"\s+", " ", body)


@pytest.mark.parametrize("config", CONFIGS)
def test_brackets_close_and_names_are_not_repeated(config) -> None:
    text = terraform(config)
    open_brackets: list[str] = []
    for token in tokens(text):
        if token in "{[(":
            open_brackets.append({"{": "}", "[": "]", "(": ")"}[token])
        elif token in "}])":
            assert open_brackets.pop() == token
    assert not open_brackets
    resources = re.findall(r'^resource "(\S+)" "(\S+)"', text, re.MULTILINE)
    assert len(resources) == len(set(resources))
    for kind, name in re.findall(r"(google_\w+)\.([\w-]+)\.", text):
        assert (kind, name) in resources or f'data "{kind}" "{name}"' in text


@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_terraform_reads_it_and_would_lay_it_out_the_same(tmp_path) -> None:
    for i, config in enumerate(CONFIGS):
        (tmp_path / f"{i}.tf").write_text(terraform(config))
    command = ["terraform", "fmt", "-check", "-diff", "-no-color", str(tmp_path)]
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
    checked = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stderr


@pytest.mark.parametrize("job", JOBS)
def test_the_pools_are_those_of_the_script(job: Job) -> None:
    script, text = commands(job), terraform(job)
    (pool,) = pools(job)
    said = node_pool(text, pool.name)
    count = "initial_node_count" if pool.autoscaled else "node_count"
    assert f"{count} = {pool.nodes} " in said
    pairs = [
        ("--spot", "spot = true"),
        ("--flex-start", "flex_start = true"),
        ("--enable-queued-provisioning", "queued_provisioning { enabled = true }"),
        ("--no-enable-autorepair", "auto_repair = false"),
        ("--location-policy=ANY", 'location_policy = "ANY"'),
        ("--reservation-affinity=none", 'consume_reservation_type = "NO_RESERVATION"'),
        ("--reservation=projects/p/reservations/r", 'values = ["projects/p/reservations/r"]'),
        (f"--max-nodes={pool.max_nodes}", f"max_node_count = {pool.max_nodes} "),
        ("--max-run-duration=7200s", 'max_run_duration = "7200s"'),
        ("--tpu-topology=4x4", 'placement_policy { type = "COMPACT" tpu_topology = "4x4" }'),
        ("--placement-policy=work-7x-2x2x2", "policy_name = google_compute_resource_policy.work-7x-2x2x2.name"),
        (f"--machine-type={pool.slice.machine_type}", f'machine_type = "{pool.slice.machine_type}"'),
    ]
    for flag, attribute in pairs:
        assert (flag in script) == (attribute in said), (flag, attribute)


def test_a_slice_of_several_hosts_is_a_resource_of_its_own() -> None:
    text = terraform(spmd_175b.service)
    for name in ("spmd-175b-v5e-4x8-0", "spmd-175b-v5e-4x8-1"):
        assert "node_count = 8 " in node_pool(text, name)


def test_cluster_bucket_and_rights() -> None:
    text = re.sub(r"\s+", " ", terraform(gemma_7b_it_v5e.service))
    assert "ray_operator_config { enabled = true }" in text
    assert "gcs_fuse_csi_driver_config { enabled = true }" in text
    assert 'workload_pool = "PROJECT_ID.svc.id.goog"' in text
    assert 'resource "google_storage_bucket" "bucket" { name = "BUCKET_NAME" location = "us-west4"' in text
    assert 'role = "roles/storage.objectUser"' in text
    assert "google_project_iam" not in text
    assert 'for_each = toset(["podslice"])' in text
    assert '.workload_pool}[default/${each.value}]"' in text
    assert 'toset(["podslice", "podslice-head"])' in terraform(whole_graph.service)


def test_strings_mean_what_they_say() -> None:
    assert literal('a"b\\c\n${x}%{y}') == '"a\\"b\\\\c\\n$${x}%%{y}"'
    assert literal("bell \a, é") == '"bell \\U00000007, é"'
