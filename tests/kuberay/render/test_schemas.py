"""Every rendered object against the schema that an API server holds it against; unknown fields count as errors."""

from typing import Any

import kubernetes_validate
import pytest

from kuberay.check import check
from kuberay.render import render
from ray_configs.capacity import FlexStart, Queued, Reservation, Spot
from ray_configs.cloud import HUGGING_FACE_TOKEN, Bucket, SecretKey
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.observability import Observability
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.upgrade import Incremental

CORE = {"v1", "batch/v1", "policy/v1"}


def a_service(slice: str, capacity: Any, replicas: tuple[int, int] = (1, 3), **more: Any) -> Service:
    config = LLMConfig(model="/gcs/m", slice=slice, min_replicas=replicas[0], max_replicas=replicas[1])
    return Service(
        name="s", applications=(Application(config=config, capacity=capacity),), bucket=Bucket(), env={"A": "1"}, **more
    )


CONFIGS: dict[str, Service | Job] = {name.rsplit(".", 1)[-1]: load(name) for name in catalog()} | {
    "gateway": a_service("v6e:4x4", Spot(), exposure=Gateway(certificate="c", hostname="h.example")),
    "load-balancer": a_service("7x:2x2x1", Reservation(name="r", project="p"), exposure=LoadBalancer(internal=False)),
    "queued": a_service("v5p:4x4x4", Queued(), (2, 2), api_keys=SecretKey(secret="s", key="k")),
    "all-options": a_service(
        "v6e:4x4",
        Spot(),
        (2, 3),
        upgrade=Incremental(gateway_class="istio"),
        gcs_fault_tolerance=GcsFaultTolerance(redis_address="r:6379", redis_password=SecretKey(secret="s", key="k")),
        disruption_budget=1,
        priority_class="high",
        lock_memory=True,
        observability=Observability(dashboards=True, alerts=True),
    ),
    "prometheus-operator": a_service(
        "v6e:2x2", Spot(), observability=Observability(prometheus="prometheus-operator", dashboards=True, alerts=True)
    ),
    "ray-job": Job(
        name="j", command=("a",), ray=True, slice="v6e:4x4", slices=2, hugging_face_token=HUGGING_FACE_TOKEN
    ),
    "ray-job-queued": Job(name="j", command=("a",), ray=True, slice="v5e:2x2", capacity=Queued(max_run_hours=3)),
    "indexed-job": Job(name="j", command=("a",), slice="v6e:4x4", capacity=FlexStart(), bucket=Bucket(read_only=False)),
    "cpu-job": Job(name="j", command=("a", "b c"), retries=5, env={"X": "y"}),
}


@pytest.fixture(params=CONFIGS)
def objects(request) -> list[dict[str, Any]]:
    return render(CONFIGS[request.param])


def test_core_objects(objects) -> None:
    for item in objects:
        if item["apiVersion"] in CORE:
            kubernetes_validate.validate(item, "1.32", strict=True)


def test_pod_templates_inside_ray_objects(objects) -> None:
    """The CRDs embed the Pod schema of the Kubernetes that they were made with; this is another one's."""
    for item in objects:
        spec = item["spec"] if item["apiVersion"] == "ray.io/v1" else {}
        cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or {}
        for group in [cluster.get("headGroupSpec"), *cluster.get("workerGroupSpecs", [])]:
            if group:
                pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
                pod["metadata"] = {"name": "pod", **pod["metadata"]}
                kubernetes_validate.validate(pod, "1.32", strict=True)


def test_ray_objects_against_kuberays_crds(objects) -> None:
    assert [finding for finding in check(objects) if finding.severity == "error"] == []


@pytest.mark.parametrize(
    "path",
    ["spec", "spec.rayClusterConfig", "spec.rayClusterConfig.workerGroupSpecs.0.template.spec.containers.0"],
)
def test_the_schemas_do_catch_an_unknown_field(path: str) -> None:
    (ray_service,) = [item for item in render(CONFIGS["llama3_8b_v5e"]) if item["kind"] == "RayService"]
    place: Any = ray_service
    for part in path.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    place["colour"] = "red"
    (finding,) = [f for f in check([ray_service]) if f.severity == "error"]
    assert "colour" in finding.where + finding.why


def test_only_kinds_whose_schemas_are_known_or_named_here() -> None:
    """No schema is at hand for these: their fields are as their documentation has them, and nothing checked them."""
    unchecked = {"kueue.x-k8s.io/v1beta1", "monitoring.googleapis.com/v1", "gateway.networking.k8s.io/v1"}
    unchecked |= {"networking.gke.io/v1", "monitoring.coreos.com/v1"}
    versions = {item["apiVersion"] for config in CONFIGS.values() for item in render(config)}
    assert versions - CORE - {"ray.io/v1"} == unchecked
