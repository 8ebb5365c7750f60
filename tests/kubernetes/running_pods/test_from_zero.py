"""A service behind routers goes to zero and comes back. What is counted is how many slices there ever were, by the
operator's word (`replicas` of the worker group) and by the Pods.
"""

from collections.abc import Iterator

import pytest

from tests.kubernetes.clusters import Cluster
from tests.kubernetes.elastic import MODEL, TPU, Watch, elastic_service, group, settle, wait
from tests.kubernetes.services.deploying import Deployed
from tests.kubernetes.services.traffic import Model, count
from tests.kubernetes.services.waiting import SERVICE_S

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with elastic_service(cluster, routers=1, zero_after_s=20) as running:
        yield running


def test_from_zero_and_back_twice(service: Deployed) -> None:
    """The first request waits for a slice of two hosts, and for the model; nobody is refused. Routers begin with an
    engine, so the service as it was deployed has a slice, and goes to zero by itself."""
    model = Model(service.url, MODEL)

    def zero() -> bool:
        return group(service, TPU)["replicas"] == 0 and not service.slices

    wait("the slice that it began with is given back", zero)
    for _ in range(2):
        with Watch(service) as watch:
            assert model.stream(timeout_s=SERVICE_S) == "200"
            assert count(20, model.complete, model.stream, at_once=1) == {"200": 20}
            wait("the slice is given back", zero)
            settle()
        assert (watch.replicas, watch.slices, len(watch.hosts)) == (1, 1, 2)
