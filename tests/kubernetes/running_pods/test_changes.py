"""Changes of a service that runs, applied under traffic: in place where Serve can, else by a second Ray cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuberay.render import to_yaml
from ray_configs.cloud import GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from ray_configs.upgrade import NewCluster
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, deployed, manifest_of, with_fields
from tests.kubernetes.services.traffic import Model, Traffic, count
from tests.kubernetes.services.waiting import SERVICE_S, until

MODEL = LLMConfig(drain_timeout_s=10, routers=1)  # from the start, as there will be two replicas
CONFIG = Service(
    name="changing",
    namespace="changing-test",
    applications=(Application(config=MODEL),),
    cloud=GoogleCloud(project="some-project"),
    upgrade=NewCluster(),
)
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with deployed(cluster, CONFIG, tiny=False) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def model(service: Deployed) -> Model:
    return Model(service.url, MODEL.served_name)


def changed(config: dict[str, Any], **service: Any) -> Service:
    return with_fields(CONFIG, applications=(Application(config=with_fields(MODEL, **config)),), **service)


def apply(service: Deployed, config: Service, folder: Path) -> str:
    file = folder / "changed.yaml"
    file.write_text(to_yaml(manifest_of(config, tiny=False)))
    # The test applied it with kubectl at first, which therefore owns its fields.
    return service.cluster.podslice("apply", str(file), "--force-conflicts").stdout


def test_another_number_of_replicas(service: Deployed, model: Model, tmp_path: Path) -> None:
    """The operator passes it on to nobody; applying does."""
    (cluster,) = service.items("rayclusters")
    with Traffic(model.complete) as traffic:
        said = apply(service, changed({"min_replicas": 2, "max_replicas": 2}), tmp_path)
        assert "replicas 1 -> 2" in said
        service.wait_for_replicas(2)
    assert set(traffic.outcomes) == {"200"}, traffic
    assert [item["metadata"]["uid"] for item in service.items("rayclusters")] == [cluster["metadata"]["uid"]]
    assert "3 of 3 workers serve" in service.status  # those of two replicas and of the router


def test_another_argument(service: Deployed, model: Model, tmp_path: Path) -> None:
    """Serve makes new replicas of it on the same Pods, a few at a time."""
    pods = {pod["metadata"]["uid"] for pod in service.pods}
    shorter = {"min_replicas": 2, "max_replicas": 2, "max_model_len": 64}
    with Traffic(model.complete) as traffic:
        apply(service, changed(shorter), tmp_path)
        until("the new limit holds", lambda: model.complete(max_tokens=100) == "400", SERVICE_S, every_s=1)
        service.wait_for_replicas(2)
    assert set(traffic.outcomes) == {"200"}, traffic
    assert {pod["metadata"]["uid"] for pod in service.pods} == pods


def test_another_environment_comes_with_a_new_cluster(service: Deployed, model: Model, tmp_path: Path) -> None:
    """The first serves until the second does; then it goes."""
    (cluster,) = service.items("rayclusters")
    old = cluster["metadata"]["name"]
    with Traffic(model.complete) as traffic:
        assert "new" in apply(service, changed({}, env={"OF_THE_TEST": "1"}), tmp_path)
        until("a second cluster", lambda: len(service.items("rayclusters")) == 2, SERVICE_S, every_s=1)
        until("the first is gone", lambda: old not in names(service), SERVICE_S, every_s=1)
    assert set(traffic.outcomes) == {"200"}, traffic
    assert len(names(service)) == 1
    assert "is ready" in service.status
    assert count(40, model.complete, model.stream) == {"200": 40}


def test_deleted_it_is_gone(service: Deployed, tmp_path: Path) -> None:
    """Kubernetes lets the RayService go while its Pods still end; whoever deleted it hears of it when they have."""
    file = tmp_path / "changed.yaml"
    file.write_text(to_yaml(manifest_of(CONFIG, tiny=False)))
    # Run by itself, kubectl applied it.
    said = service.cluster.podslice("delete", str(file), "--force", timeout=SERVICE_S).stdout
    assert f"RayService {CONFIG.name}: gone" in said
    assert not service.items("pods", "-l", "ray.io/cluster") and not names(service)


def names(service: Deployed) -> list[str]:
    return [item["metadata"]["name"] for item in service.items("rayclusters")]
