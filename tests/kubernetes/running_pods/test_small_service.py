"""One Ray cluster with a language model and pictures, each on slices of one host, and a Redis for its head."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from ray_configs.cloud import SecretKey
from ray_configs.exposure import Gateway
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, Object, deployed, harness_only
from tests.kubernetes.services.traffic import Model, Traffic, count
from tests.kubernetes.services.waiting import SERVICE_S, until

NAMESPACE, PASSWORD = "small-test", "of-the-test"
SD_REQ = Path(__file__).parents[3] / "clients" / "sd_req.py"
LONG_ANSWER = 1000
Record = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(2 * SERVICE_S)

LLM = LLMConfig(
    model="meta-llama/Meta-Llama-3-8B",
    model_id="small",
    slice="v5e:2x2",
    min_replicas=2,
    max_replicas=2,
    tiny=True,
    max_model_len=4096,
    max_batch_size=8,
    max_step_tokens=64,
    drain_timeout_s=180,
)
CONFIG = Service(
    name="small",
    namespace=NAMESPACE,
    applications=(
        Application(config=LLM),
        Application(config=StableDiffusionConfig.demo(slice="v4:2x2x1"), route_prefix="/pictures"),
    ),
    exposure=Gateway(),
    gcs_fault_tolerance=GcsFaultTolerance(
        redis_address="redis:6379", redis_password=SecretKey(secret="redis", key="password")
    ),
    disruption_budget=1,
)


def redis() -> list[Object]:
    """A Redis of the user's own, with a password."""
    metadata = {"name": "redis", "namespace": NAMESPACE, "labels": {"app": "redis"}}
    container = {
        "name": "redis",
        "image": "docker.io/library/redis:7",
        "command": ["redis-server", "--requirepass", PASSWORD, "--save", "", "--dir", "/tmp"],
        "ports": [{"containerPort": 6379}],
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
    }
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}},
        {
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"password": PASSWORD}},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with deployed(cluster, CONFIG, before=redis(), tiny=False) as running:
        running.wait_until_ready()
        running.wait_for_replicas(2)
        running.wait_for_replicas(1, "stable-diffusion")
        yield running


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, LLM.model_id)


def test_every_request_over_the_service_is_answered(model: Model) -> None:
    assert count(100, model.complete, model.stream) == {"200": 100}


def test_the_load_balancer_finds_every_endpoint_healthy(service: Deployed) -> None:
    """As its HealthCheckPolicy has it: each endpoint by itself. Those that are, answer."""
    harness_only(service.cluster)
    policy = next(item for item in service.objects if item["kind"] == "HealthCheckPolicy")
    check = policy["spec"]["default"]["config"]["httpHealthCheck"]
    addresses = service.endpoints
    assert len(addresses) == 6  # the head, three workers with chips and two with routers
    for ip in addresses:
        assert httpx.get(f"http://{ip}:{check['port']}{check['requestPath']}", timeout=60).status_code == 200
        assert count(10, Model(f"http://{ip}:{check['port']}", LLM.model_id).complete) == {"200": 10}


def test_the_picture_client_saves_its_pictures(service: Deployed, tmp_path: Path) -> None:
    output = tmp_path / "diffusion_results.png"
    command = [sys.executable, str(SD_REQ), "--url", f"{service.url}/pictures", "--save_pictures"]
    options = ["--num_requests", "4", "--output", str(output)]
    said = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    assert said.returncode == 0, said.stdout + said.stderr
    assert Image.open(output).size >= (64, 64)


def test_a_node_drain_cuts_no_stream(service: Deployed, model: Model, record_property: Record) -> None:
    workers = [pod for pods in service.slices.values() for pod in pods if "2x2-" in pod["metadata"]["name"]]
    node = workers[0]["spec"]["nodeName"]
    streams: list[tuple[float, float, str]] = []
    begun: list[float] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            start = time.monotonic()
            outcome = model.stream(LONG_ANSWER, SERVICE_S, lambda: begun.append(time.monotonic()))
            streams.append((start, time.monotonic(), outcome))

    asking = [threading.Thread(target=ask) for _ in range(6)]
    for thread in asking:
        thread.start()
    try:
        until("answers are on their way", lambda: len(begun) > len(asking) or streams, SERVICE_S)
        drain = service.cluster.start_kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
        until("its Pod is told to end", lambda: _is_ending(service, workers[0]), SERVICE_S)
        told = time.monotonic()
        with Traffic(model.complete) as traffic:
            said, error = drain.communicate(timeout=SERVICE_S)
    finally:
        over.set()
        for thread in asking:
            thread.join()
    record_property("traffic", str(traffic))
    print(f"\na node was drained: {traffic}")
    assert drain.returncode == 0, said + error
    assert any(start < told < end for start, end, _ in streams)
    assert {outcome for _, _, outcome in streams} == {"200"}
    assert set(traffic.outcomes) == {"200"}
    service.cluster.kubectl("uncordon", node)
    service.wait_for_replicas(2)


def _is_ending(service: Deployed, pod: Object) -> bool:
    found = service.cluster.kubectl(
        "-n", service.namespace, "get", "pod", pod["metadata"]["name"], "-o", "json", check=False
    )
    return found.returncode != 0 or "deletionTimestamp" in json.loads(found.stdout)["metadata"]


def test_it_answers_on_while_its_head_comes_back(service: Deployed, model: Model, record_property: Record) -> None:
    workers = {pod["metadata"]["uid"] for pods in service.slices.values() for pod in pods}
    old = service.head
    with Traffic(model.complete) as traffic:
        service.kubectl("delete", "pod", old, "--force", "--grace-period=0")
        until("there is a new head", lambda: _has_new_head(service, old), SERVICE_S, every_s=1)
        answered_without_a_head = len(traffic.answered)
        service.wait_for_replicas(2)
        service.wait_until_ready()
    record_property("traffic", str(traffic))
    print(f"\nthe head was lost: {traffic}")
    assert answered_without_a_head > 0
    assert {pod["metadata"]["uid"] for pods in service.slices.values() for pod in pods} == workers
    assert count(40, model.complete, model.stream) == {"200": 40}


def _has_new_head(service: Deployed, old: str) -> bool:
    """Ready, not just there."""
    for pod in service.pods:
        if pod["metadata"]["labels"].get("ray.io/node-type") == "head" and pod["metadata"]["name"] != old:
            conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
            return conditions.get("Ready") == "True"
    return False
