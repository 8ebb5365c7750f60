"""The rendered catalog against the tutorials that people come from: field by field, what those say and ours has."""

from typing import Any

import pytest

from kuberay.render import render
from ray_configs.loading import load


def rendered(name: str, kind: str) -> dict[str, Any]:
    """The one object of a kind that a catalog config renders to."""
    (found,) = [item for item in render(load(f"ray_configs.catalog.{name}")) if item["kind"] == kind]
    return found


def at(value: Any, path: str) -> Any:
    """`spec.workerGroupSpecs.0.numOfHosts`; a key with dots in it is written in the last place, after a space."""
    path, _, last = path.partition(" ")
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value[last] if last else value


WORKER = "spec.rayClusterConfig.workerGroupSpecs.0"
POD = f"{WORKER}.template.spec"


@pytest.mark.parametrize(
    ("path", "seed_says"),
    [
        ("apiVersion", "ray.io/v1"),
        ("metadata.name", "stable-diffusion-tpu"),
        (f"{WORKER}.numOfHosts", 1),
        (f"{WORKER}.replicas", 1),
        (f"{WORKER}.minReplicas", 1),
        (f"{WORKER}.maxReplicas", 10),
        (f"{POD}.nodeSelector cloud.google.com/gke-tpu-accelerator", "tpu-v4-podslice"),
        (f"{POD}.nodeSelector cloud.google.com/gke-tpu-topology", "2x2x1"),
        (f"{POD}.containers.0.resources.limits google.com/tpu", "4"),
        (f"{POD}.containers.0.resources.requests google.com/tpu", "4"),
        ("spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.resources.limits.cpu", "2"),
        ("spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.resources.limits.memory", "8G"),
        ("spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.name", "ray-head"),
        (f"{POD}.containers.0.name", "ray-worker"),
    ],
)
def test_stable_diffusion_on_v4(path: str, seed_says: Any) -> None:
    assert at(rendered("stable_diffusion_v4", "RayService"), path) == seed_says


def test_stable_diffusion_ports_are_the_ones_that_the_tutorial_forwards() -> None:
    service = rendered("stable_diffusion_v4", "RayService")
    ports = at(service, "spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.ports")
    assert {port["name"]: port["containerPort"] for port in ports} == {
        "gcs": 6379,
        "dashboard": 8265,
        "client": 10001,
        "serve": 8000,
    }
    assert "serveService" not in service["spec"], "svc/stable-diffusion-tpu-serve-svc must stay KubeRay's, on 8000"


@pytest.mark.parametrize(
    ("path", "seed_says"),
    [
        (f"{WORKER}.replicas", 2),  # JobSet: replicas 2, each a model server
        (f"{WORKER}.numOfHosts", 8),  # parallelism and completions 8
        (f"{POD}.containers.0.resources.limits google.com/tpu", "4"),
        (f"{POD}.nodeSelector cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice"),
        (f"{POD}.nodeSelector cloud.google.com/gke-tpu-topology", "4x8"),
        ("spec.serveService.spec.type", "LoadBalancer"),  # sax-http-lb
        ("spec.serveService.spec.ports.0.port", 8888),
        ("spec.serveService.spec.ports.0.targetPort", 8000),
    ],
)
def test_the_175b_model_on_two_slices_of_eight_hosts(path: str, seed_says: Any) -> None:
    assert at(rendered("spmd_175b", "RayService"), path) == seed_says


def test_175b_workers_open_the_port_of_the_tpu_runtime_and_no_multislice() -> None:
    container = at(rendered("spmd_175b", "RayService"), f"{POD}.containers.0")
    assert 8471 in [port["containerPort"] for port in container["ports"]]
    assert not [variable for variable in container["env"] if variable["name"].startswith("MEGASCALE")]


@pytest.mark.parametrize(
    ("path", "seed_says"),
    [
        ("apiVersion", "batch/v1"),
        ("spec.template.spec.nodeSelector cloud.google.com/gke-flex-start", "true"),
        ("spec.template.spec.nodeSelector cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice"),
        ("spec.template.spec.nodeSelector cloud.google.com/gke-tpu-topology", "2x2"),
        ("spec.template.spec.containers.0.resources.requests google.com/tpu", "4"),
        ("spec.template.spec.containers.0.resources.limits google.com/tpu", "4"),
        ("spec.template.spec.restartPolicy", "OnFailure"),
    ],
)
def test_flex_start_job_on_one_host(path: str, seed_says: Any) -> None:
    assert at(rendered("smoke_single_host", "Job"), path) == seed_says


@pytest.mark.parametrize(
    ("path", "seed_says"),
    [
        ("spec.backoffLimit", 0),
        ("spec.completions", 2),
        ("spec.parallelism", 2),
        ("spec.completionMode", "Indexed"),
        ("spec.template.spec.restartPolicy", "Never"),
        ("spec.template.spec.nodeSelector cloud.google.com/gke-flex-start", "true"),
        ("spec.template.spec.containers.0.ports.0.containerPort", 8471),
        ("spec.template.spec.containers.0.ports.1.containerPort", 8431),
        ("spec.template.spec.containers.0.resources.limits google.com/tpu", "4"),
    ],
)
def test_flex_start_job_on_several_hosts(path: str, seed_says: Any) -> None:
    assert at(rendered("smoke_multi_host", "Job"), path) == seed_says


def test_flex_start_hosts_find_each_other_by_a_headless_service() -> None:
    job, service = rendered("smoke_multi_host", "Job"), rendered("smoke_multi_host", "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize(("name", "chips"), [("smoke_single_host", "4"), ("smoke_multi_host", "8")])
def test_flex_start_jobs_count_the_chips_without_the_tutorials_privileges(name: str, chips: str) -> None:
    container = at(rendered(name, "Job"), "spec.template.spec.containers.0")
    assert container["command"] == ["python", "-m", "apps.jobs.smoke", "--platform", "tpu", "--expect", chips]
    assert "securityContext" not in container


@pytest.mark.parametrize("name", ["llama3_8b_v5e", "gemma_7b_it_v5e"])
def test_jetstreams_models_have_two_replicas_of_eight_chips(name: str) -> None:
    group = at(rendered(name, "RayService"), WORKER)
    assert (group["replicas"], group["numOfHosts"]) == (2, 1)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "8"
    assert group["template"]["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }


def test_the_checkpoint_job_uses_the_tutorials_secret_and_writes_where_the_server_reads() -> None:
    job, server = rendered("prepare_gemma_7b_it", "Job"), load("ray_configs.catalog.gemma_7b_it_v5e")
    container = at(job, "spec.template.spec.containers.0")
    (token,) = container["env"]
    assert token["name"] == "HF_TOKEN"
    assert token["valueFrom"]["secretKeyRef"] == {"name": "huggingface-secret", "key": "HUGGINGFACE_TOKEN"}
    served = server.applications[0].config
    assert container["command"][3:] == ["google/gemma-7b-it", served.model, "--slice", str(served.slice)]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "podslice"
    assert at(
        rendered("prepare_gemma_7b_it", "ServiceAccount"), "metadata.annotations iam.gke.io/gcp-service-account"
    ) == ("podslice@PROJECT_ID.iam.gserviceaccount.com")
