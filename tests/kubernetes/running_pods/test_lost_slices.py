"""A slice that loses a host under the autoscaler is made anew, and no other beside it: neither below the most slices
that there may be, where one could be bought, nor at it, where one must not be torn apart for another.
"""

from collections.abc import Iterator

import pytest

from kuberay.render.ray.ray_cluster import HEADROOM
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.elastic import MODEL, MOST, TPU, Watch, elastic_service, group, one_replica, settle, uids, wait
from tests.kubernetes.services.deploying import Deployed, harness_only
from tests.kubernetes.services.traffic import Model, Traffic
from tests.kubernetes.services.waiting import SERVICE_S

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with elastic_service(cluster) as running:
        yield running


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, MODEL)


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
        settle()
    assert (watch.replicas, watch.slices) == (1, 1)
    assert sorted(service.slices) == [name]


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
            settle()
        assert (watch.replicas, watch.slices) == (2, 2)
        assert sorted(service.slices) == sorted(before)
