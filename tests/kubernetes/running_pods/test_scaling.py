"""Slices of two hosts come and go with the requests. What is counted is how many slices there ever were, by the
operator's word (`replicas` of the worker group) and by the Pods.
"""

from collections.abc import Iterator

import pytest

from tests.kubernetes.clusters import Cluster
from tests.kubernetes.elastic import CPU, MODEL, TPU, Watch, elastic_service, group, one_replica, settle, wait
from tests.kubernetes.services.deploying import Deployed
from tests.kubernetes.services.traffic import Model, Traffic, count
from tests.kubernetes.services.waiting import SERVICE_S

pytestmark = pytest.mark.timeout(2 * SERVICE_S)


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with elastic_service(cluster) as running:
        yield running


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, MODEL)


def test_the_first_request_brings_the_first_slice(service: Deployed, model: Model) -> None:
    """Nothing but the head runs. One request waits for a CPU Pod, for a slice of two hosts, and for the model."""
    assert [pod["metadata"]["name"] for pod in service.pods] == [service.head]
    with Watch(service) as watch:
        assert model.complete(timeout_s=SERVICE_S) == "200"
    assert (watch.replicas, watch.slices) == (1, 1)
    assert group(service, CPU)["replicas"] == 1 and len(service.pods) == 4
    assert count(20, model.complete, model.stream, at_once=1) == {"200": 20}, "more at once are work for two replicas"


@pytest.mark.long
def test_a_second_slice_comes_and_goes_and_nobody_notices(service: Deployed, model: Model) -> None:
    """While somebody goes on asking, one at a time: that is one replica's work."""
    one_replica(service, model)
    with Watch(service) as watch, Traffic(model.complete, every_s=1) as light:
        with Traffic(model.complete, every_s=0):
            service.wait_for_replicas(2)
            assert len(service.slices) == 2
        wait("one slice goes", lambda: group(service, TPU)["replicas"] == 1 and len(service.slices) == 1)
        settle()
    assert (watch.replicas, watch.slices) == (2, 2)
    assert len(service.slices) == 1 and service.running_replicas("llm") == 1
    assert set(light.outcomes) == {"200"}, light
