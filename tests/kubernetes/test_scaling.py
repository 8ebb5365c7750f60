"""Slices of two hosts come and go: Serve's autoscaling, Ray's autoscaler beside the head, and the operator.

What is counted is how many slices there ever were, by the operator's word (`replicas` of the worker group) and by the
Pods. Only Serve's and Ray's patience is shorter than what is rendered.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from clusters import Cluster
from deploying import Deployed, deployed, harness_only, with_fields
from traffic import Model, Traffic, count
from waiting import SERVICE_S, until

from kuberay.render.ray_cluster import HEADROOM
from ray_configs.catalog.spmd_175b import service as spmd

NAMESPACE, MODEL, TPU, CPU = "scaling-test", "/sax/test/spmd", "tpu-v5e-2x4-4t", "cpu-v5e-2x4-4t"
MOST = 2
IDLE_S = 60
SERVE = {"min_replicas": 0, "max_replicas": MOST, "target_ongoing_requests": 1, "upscale_delay_s": 5}
SERVE |= {"downscale_delay_s": 30, "downscale_to_zero_delay_s": 3600, "look_back_period_s": 20}
pytestmark = pytest.mark.timeout(2 * SERVICE_S)


def hasty(objects: list[dict[str, Any]]) -> None:
    """So that nobody needs to wait a quarter of an hour for Serve and Ray to find that a slice is idle."""
    for item in objects:
        if item["kind"] == "RayService":
            item["spec"]["rayClusterConfig"]["autoscalerOptions"]["idleTimeoutSeconds"] = IDLE_S
            config = yaml.safe_load(item["spec"]["serveConfigV2"])
            config["applications"][0]["deployments"] = [{"name": "LLMServer", "autoscaling_config": SERVE}]
            item["spec"]["serveConfigV2"] = yaml.safe_dump(config)


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    app = spmd.applications[0]
    config = with_fields(app.config, min_replicas=0, max_replicas=MOST, drain_timeout_s=10)
    elastic = with_fields(spmd, namespace=NAMESPACE, applications=(app.model_copy(update={"config": config}),))
    with deployed(cluster, elastic, change=hasty) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, MODEL)


class Watch:
    """Looks every second how many slices there are, and keeps the most that there were."""

    def __init__(self, service: Deployed):
        self._service, self._over = service, threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.replicas = self.slices = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(1):
            self.replicas = max(self.replicas, group(self._service, TPU)["replicas"])
            self.slices = max(self.slices, len(self._service.slices))


def group(service: Deployed, name: str) -> dict[str, Any]:
    (cluster,) = service.items("rayclusters")
    return next(one for one in cluster["spec"]["workerGroupSpecs"] if one["groupName"] == name)


def wait(said: str, what: Callable[[], bool]) -> None:
    until(said, what, SERVICE_S, every_s=2)


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def one_replica(service: Deployed, model: Model) -> None:
    """As the test before leaves it; alone, a test has it made."""
    if service.running_replicas("llm") == 0:
        assert model.complete(timeout_s=SERVICE_S) == "200"


def test_the_first_request_brings_the_first_slice(service: Deployed, model: Model) -> None:
    """Nothing but the head runs. One request waits for a CPU Pod, for a slice of two hosts, and for the model."""
    assert [pod["metadata"]["name"] for pod in service.pods] == [service.head]
    with Watch(service) as watch:
        assert model.complete(timeout_s=SERVICE_S) == "200"
    assert (watch.replicas, watch.slices) == (1, 1)
    assert group(service, CPU)["replicas"] == 1 and len(service.pods) == 4
    assert count(20, model.complete, model.stream, at_once=1) == {"200": 20}, "more at once are work for two replicas"


@pytest.mark.long
def test_a_lost_host_costs_no_second_slice(service: Deployed, model: Model) -> None:
    """There is room for another: the group may have two, and the autoscaler counts up to twice that."""
    harness_only(service.cluster)
    one_replica(service, model)
    assert group(service, TPU)["maxReplicas"] == HEADROOM * MOST
    ((name, hosts),) = service.slices.items()
    with Watch(service) as watch:
        service.kubectl("delete", "pod", hosts[1]["metadata"]["name"], "--force", "--grace-period=0")
        wait("the slice is made anew", lambda: uids(service.slices.get(name, [])).isdisjoint(uids(hosts)))
        service.wait_for_replicas(1)  # unasked: requests that pile up are work for a second one
        _settle(service)
    assert (watch.replicas, watch.slices) == (1, 1)
    assert sorted(service.slices) == [name]


def _settle(service: Deployed) -> None:
    """The autoscaler has looked again at everything, some times."""
    threading.Event().wait(1.5 * IDLE_S)


@pytest.mark.long
def test_a_second_slice_comes_and_goes_and_nobody_notices(service: Deployed, model: Model) -> None:
    """While somebody goes on asking, one at a time: that is one replica's work."""
    one_replica(service, model)
    with Watch(service) as watch, Traffic(model.complete, every_s=1) as light:
        with Traffic(model.complete, every_s=0):
            service.wait_for_replicas(2)
            assert len(service.slices) == 2
        wait("one slice goes", lambda: group(service, TPU)["replicas"] == 1 and len(service.slices) == 1)
        _settle(service)
    assert (watch.replicas, watch.slices) == (2, 2)
    assert len(service.slices) == 1 and service.running_replicas("llm") == 1
    assert set(light.outcomes) == {"200"}, light


@pytest.mark.long
def test_a_lost_host_at_the_maximum_costs_no_third_slice(service: Deployed, model: Model) -> None:
    harness_only(service.cluster)
    one_replica(service, model)
    with Traffic(model.complete, every_s=0):
        service.wait_for_replicas(2)
        before = service.slices
        name, hosts = sorted(before.items())[0]
        with Watch(service) as watch:
            service.kubectl("delete", "pod", hosts[0]["metadata"]["name"], "--force", "--grace-period=0")
            wait("the slice is made anew", lambda: uids(service.slices.get(name, [])).isdisjoint(uids(hosts)))
            service.wait_for_replicas(2)
            _settle(service)
        assert (watch.replicas, watch.slices) == (2, 2)
        assert sorted(service.slices) == sorted(before)
