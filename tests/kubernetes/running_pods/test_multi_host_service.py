"""Two slices of two hosts: everybody is answered, and a slice that loses a host comes back whole, under its name."""

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from ray_configs.catalog.spmd_175b import service as spmd
from ray_configs.cloud import SecretKey
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness.nodes import nodes_for
from tests.kubernetes.services.deploying import Deployed, Object, deployed, harness_only, port_forward, with_fields
from tests.kubernetes.services.traffic import Model, Traffic, count
from tests.kubernetes.services.waiting import SERVICE_S, until

NAMESPACE, KEY, MODEL = "spmd-test", "sk-of-the-test", "/sax/test/spmd"
Record = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(2 * SERVICE_S)


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    app = spmd.applications[0]
    short = app.model_copy(update={"config": with_fields(app.config, drain_timeout_s=10)})
    keys = SecretKey(secret="keys", key="all")
    config = with_fields(spmd, namespace=NAMESPACE, api_keys=keys, applications=(short,))
    with deployed(cluster, config) as running:
        until("Pods wait for their Secret", lambda: _waiting(running), SERVICE_S, every_s=1)
        running.kubectl("create", "secret", "generic", "keys", f"--from-literal=all=test={KEY}")
        running.wait_until_ready()
        running.wait_for_replicas(2)
        assert f"{running.name} is ready: 2 of 2 slices serve" in running.status
        yield running


def _waiting(running: Deployed) -> bool:
    states = [
        status["state"].get("waiting", {}).get("reason")
        for pod in running.pods
        for kind in ("containerStatuses", "initContainerStatuses")
        for status in pod["status"].get(kind) or ()
    ]
    return "CreateContainerConfigError" in states


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, MODEL, KEY)


def test_every_request_over_the_service_is_answered(service: Deployed, model: Model) -> None:
    assert count(400, model.complete, model.stream) == {"200": 400}
    assert count(20, Model(service.url, MODEL).complete) == {"401": 20}


def test_hosts_without_a_proxy_are_kept_out_by_their_readiness(service: Deployed, record_property: Record) -> None:
    """Not by anything else: a Service that takes whoever runs sends most connections where nobody listens."""
    harness_only(service.cluster)
    (of_serve,) = service.items("service", f"--field-selector=metadata.name={service.name}-serve-svc")
    spec = {"selector": of_serve["spec"]["selector"], "publishNotReadyAddresses": True}
    spec["ports"] = [{"name": "serve", "port": 8888, "targetPort": 8000}]
    everybody = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "everybody"}, "spec": spec}
    service.kubectl("apply", "-f", "-", input=json.dumps(everybody))
    url = service.cluster.service_url("everybody", "serve", service.namespace)
    until("it has endpoints", lambda: Model(url, MODEL, KEY).complete() == "200", every_s=1)
    outcomes = count(400, Model(url, MODEL, KEY).complete)
    record_property("outcomes", str(outcomes))
    print(f"\nwith every Pod an endpoint: {outcomes}")
    assert outcomes["200"] < 400
    assert len(service.endpoints) == 5  # the head, and where processes of Serve run: two replicas and two routers


def test_a_curl_of_the_tutorial_is_answered(service: Deployed) -> None:
    """On the port that the tutorial names, the Service's own."""
    assert service.url.endswith(":8888")
    asked = {"model": MODEL, "query": "How many days are in a week?"}
    kind, key = "Content-type: application/json", f"Authorization: Bearer {KEY}"
    command = ["curl", "--request", "POST", "--header", kind, "-s", f"{service.url}/generate", "--header", key]
    said = subprocess.run([*command, "--data", json.dumps(asked)], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    ((words, _),) = json.loads(said.stdout)["generate_response"]
    assert words


def test_a_laptop_reaches_it_by_port_forward(service: Deployed) -> None:
    with port_forward(service, f"svc/{service.name}-serve-svc", 8888) as url:
        model = Model(url, MODEL, KEY)
        assert count(20, model.complete, model.stream) == {"200": 20}


@pytest.mark.parametrize("loss", ["pod", pytest.param("node", marks=pytest.mark.long)])
def test_a_slice_that_loses_a_host_comes_back_whole(
    service: Deployed, model: Model, loss: str, record_property: Record
) -> None:
    harness_only(service.cluster)
    before = service.slices
    assert {name: len(pods) for name, pods in before.items()} == dict.fromkeys(before, 2)
    pods_before = len(service.pods)
    name, hosts = sorted(before.items())[0]
    victim = hosts[-1]
    old = {pod["metadata"]["uid"] for pod in hosts}
    with Traffic(model.complete) as traffic:
        if loss == "pod":
            service.kubectl("delete", "pod", victim["metadata"]["name"], "--force", "--grace-period=0")
        else:
            _lose(service, victim)
        until("status tells", lambda: "1 of 2 slices serve" in service.status, SERVICE_S, every_s=1)
        until(f"{name} is whole again", lambda: _is_new(service, name, old), SERVICE_S, every_s=1)
        service.wait_for_replicas(2)
    record_property("traffic", str(traffic))
    print(f"\na host was lost ({loss}): {traffic}")
    assert set(traffic.outcomes) == {"200"}, "routers ask the other slice"
    after = service.slices
    assert sorted(after) == sorted(before)
    assert len(service.pods) == pods_before
    assert len(service.items("rayclusters")) == 1
    assert {pod["metadata"]["uid"] for pod in after[name]}.isdisjoint(old)
    assert count(40, model.complete, model.stream) == {"200": 40}
    assert "2 of 2 slices serve" in service.status


def _is_new(service: Deployed, name: str, old: set[str]) -> bool:
    pods = service.slices.get(name, [])
    new = [pod for pod in pods if pod["metadata"]["uid"] not in old and pod["status"].get("phase") == "Running"]
    return len(new) == len(pods) == 2


def _lose(service: Deployed, pod: Object) -> None:
    """Its Node is deleted, as when the machine is preempted; later, with its Pods gone, the pool has another."""
    name = pod["spec"]["nodeName"]
    service.cluster.kubectl("delete", "node", name)
    there = ("get", "pod", pod["metadata"]["name"], "--ignore-not-found", "-o", "name")
    until("its Pod is gone", lambda: not service.kubectl(*there), SERVICE_S, every_s=1)
    again = next(node for node in nodes_for(service.objects) if node["metadata"]["name"] == name)
    service.cluster.kubectl("create", "-f", "-", input=json.dumps(again))


@pytest.mark.long
def test_a_lost_head_comes_back_and_leaves_nothing_behind(
    service: Deployed, model: Model, record_property: Record
) -> None:
    """Without a Redis every replica ends with it; in the end there is one cluster, and it serves."""
    pods_before, slices_before = len(service.pods), sorted(service.slices)
    old = service.head
    with Traffic(model.complete) as traffic:
        service.kubectl("delete", "pod", old, "--force", "--grace-period=0")
        until("there is a new head", lambda: _has_new_head(service, old), SERVICE_S, every_s=1)
        service.wait_for_replicas(2)
        service.wait_until_ready()
    record_property("traffic", str(traffic))
    print(f"\nthe head was lost: {traffic}")
    until("there are as many Pods as before", lambda: len(service.pods) == pods_before, SERVICE_S, every_s=1)
    assert sorted(service.slices) == slices_before
    assert len(service.items("rayclusters")) == 1
    assert count(40, model.complete, model.stream) == {"200": 40}


def _has_new_head(service: Deployed, old: str) -> bool:
    heads = [pod for pod in service.pods if pod["metadata"]["labels"].get("ray.io/node-type") == "head"]
    return any(pod["metadata"]["name"] != old and pod["status"].get("phase") == "Running" for pod in heads)
