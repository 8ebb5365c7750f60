"""The scripts hold what GKE's own TPU tutorials have one type, flag by flag; where they differ, the test says why."""

import pytest

from kuberay.node_pools import commands, terraform
from ray_configs.capacity import FlexStart
from ray_configs.catalog import (
    cell_v5e_4x8,
    gemma_7b_it_v5e,
    llama3_8b_v5e,
    smoke_multi_host,
    smoke_single_host,
    spmd_175b,
)
from ray_configs.catalog import stable_diffusion_v4 as stable_diffusion
from ray_configs.cloud import GoogleCloud, Identity
from ray_configs.job import Job


def without_binding(flags: dict[str, str | bool]) -> dict[str, str | bool]:
    """The flags but those by which a pool takes one config's Pods alone; the tutorials' clusters have one config."""
    bound = {"node-labels", "node-taints"}
    assert bound <= flags.keys()
    return {name: value for name, value in flags.items() if name not in bound}


def test_saxml_two_slices_of_eight_hosts(run) -> None:
    ran = run(commands(spmd_175b.service))
    assert ran.status == 0, ran.said
    cluster = ran.one("container clusters create saxml").flags
    assert cluster["location"] == "us-west4-a"
    assert cluster["workload-pool"] == "a-project.svc.id.goog"
    pools = ran.made("container node-pools create")
    assert [pool.words.split()[-1] for pool in pools] == ["spmd-175b-v5e-4x8-0", "spmd-175b-v5e-4x8-1"]
    for pool in pools:
        assert without_binding(pool.flags) == {
            "cluster": "saxml",
            "location": "us-west4-a",
            "machine-type": "ct5lp-hightpu-4t",
            "tpu-topology": "4x8",
            "num-nodes": "8",
            "reservation-affinity": "none",  # the tutorial leaves it open: a reservation might be used up unasked
        }
    credentials = ran.one("container clusters get-credentials saxml")
    assert credentials.flags == {"location": "us-west4-a"}


def test_jetstream_one_pool_of_two_hosts(run) -> None:
    ran = run(commands(gemma_7b_it_v5e.service))
    assert without_binding(ran.one("container node-pools create gemma-7b-it-v5e-2x4-8t").flags) == {
        "cluster": "podslice",
        "location": "us-west4",
        "node-locations": "us-west4-a",
        "machine-type": "ct5lp-hightpu-8t",
        "num-nodes": "2",
        "reservation-affinity": "none",
    }
    assert ran.project == "a-project"


def test_jetstream_bucket_and_rights(run) -> None:
    service = gemma_7b_it_v5e.service.model_copy(update={"identity": Identity(service_account="wi-jetstream")})
    ran = run(commands(service))
    assert ran.one("storage buckets create gs://BUCKET_NAME").flags["location"] == "us-west4"
    ran.one("iam service-accounts create wi-jetstream")
    account = "wi-jetstream@a-project.iam.gserviceaccount.com"
    # The tutorial gives roles in the whole project; here they are the bucket's alone.
    rights = ran.made("storage buckets add-iam-policy-binding gs://BUCKET_NAME")
    assert [right.flags for right in rights] == [
        {"member": f"serviceAccount:{account}", "role": "roles/storage.objectUser"},
        {"member": f"serviceAccount:{account}", "role": "roles/storage.legacyBucketReader"},
    ]
    assert not ran.made("projects add-iam-policy-binding")
    assert ran.one(f"iam service-accounts add-iam-policy-binding {account}").flags == {
        "role": "roles/iam.workloadIdentityUser",
        "member": "serviceAccount:a-project.svc.id.goog[default/wi-jetstream]",
    }


def test_a_cell_may_write_its_state(run) -> None:
    config = cell_v5e_4x8.service.applications[0].config
    assert config.state_bucket == cell_v5e_4x8.service.bucket.name
    rights = run(commands(cell_v5e_4x8.service)).made("storage buckets add-iam-policy-binding gs://BUCKET_NAME")
    assert "roles/storage.objectUser" in [right.flags["role"] for right in rights], "objectViewer could not write"
    assert '"roles/storage.objectUser"' in terraform(cell_v5e_4x8.service)


def test_hugging_face_secret(run) -> None:
    ran = run(commands(llama3_8b_v5e.service), HF_TOKEN="hf_secret")
    secret = ran.one("create secret generic huggingface-secret")
    assert secret.flags["namespace"] == "default"
    assert secret.flags["from-file"].startswith("HUGGINGFACE_TOKEN=")
    assert ran.secrets == ["hf_secret"]
    assert not any("hf_secret" in argument for call in ran.calls for argument in call.arguments)


def test_stable_diffusion_on_v4(run) -> None:
    cloud = GoogleCloud(
        location="us-central2-b", cluster="ray-cluster", cluster_version="1.30.1", head_machine_type="n1-standard-8"
    )
    ran = run(commands(stable_diffusion.service.model_copy(update={"cloud": cloud})))
    cluster = ran.one("container clusters create ray-cluster").flags
    assert cluster["location"] == "us-central2-b"
    assert cluster["machine-type"] == "n1-standard-8"
    assert cluster["cluster-version"] == "1.30.1"
    assert "release-channel" not in cluster
    # A list of add-ons turns off those that are on by themselves, the Gateway's load balancers among them.
    assert set(cluster["addons"].split(",")) == {
        "RayOperator",
        "GcsFuseCsiDriver",
        "HttpLoadBalancing",
        "HorizontalPodAutoscaling",
    }
    pool = ran.one("container node-pools create stable-diffusion-tpu-v4-2x2x1").flags
    assert (pool["cluster"], pool["location"]) == ("ray-cluster", "us-central2-b")
    assert (pool["machine-type"], pool["num-nodes"]) == ("ct4p-hightpu-4t", "1")
    assert (pool["min-nodes"], pool["max-nodes"]) == ("1", "10")
    assert "tpu-topology" not in pool  # the tutorial's 2x2x1 is what one ct4p host is anyway


@pytest.mark.parametrize(
    ("job", "max_nodes", "topology"),
    [(smoke_single_host.job, "1", None), (smoke_multi_host.job, "2", "2x4")],
)
def test_flex_start(run, job: Job, max_nodes: str, topology: str | None) -> None:
    (pool,) = run(commands(job)).made("container node-pools create")
    assert without_binding(pool.flags) == {
        "cluster": "podslice",
        "location": "us-west4",
        "node-locations": "us-west4-a",
        "machine-type": "ct5lp-hightpu-4t",
        **({"tpu-topology": topology} if topology else {}),
        "flex-start": True,
        "enable-autoscaling": True,
        "num-nodes": "0",
        "min-nodes": "0",
        "max-nodes": max_nodes,
        "reservation-affinity": "none",
        "no-enable-autorepair": True,
        "location-policy": "ANY",
        "max-run-duration": "3600s",
    }


def test_flex_start_of_sixteen_chips_makes_four_hosts_at_once(run) -> None:
    cloud = GoogleCloud(location="us-east5", zones=("us-east5-b",))
    job = Job(name="train", command=("true",), slice="v6e:4x4", capacity=FlexStart(), cloud=cloud)
    (pool,) = run(commands(job)).made("container node-pools create")
    assert pool.flags["machine-type"] == "ct6e-standard-4t"
    assert (pool.flags["num-nodes"], pool.flags["max-nodes"]) == ("0", "4")
    assert pool.flags["max-run-duration"] == "604800s"
