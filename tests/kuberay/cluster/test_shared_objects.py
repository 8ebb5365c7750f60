"""Objects that several configs render under one name, on an API server in memory: in every order, and two at once.

What must hold is said by the rendered manifests: a config that is applied finds all of its objects there. The same on
the real API server: tests/kubernetes/cluster/test_shared_objects.py.
"""

import random
from itertools import combinations

import pytest

from kuberay.cluster import Cluster, ClusterError, apply, delete
from kuberay.cluster.manifests import Manifest, annotations
from kuberay.cluster.users import USED_BY, is_workload
from kuberay.render import render
from kuberay.source import Placeholders
from ray_configs.capacity import Queued
from ray_configs.cloud import Identity
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.observability import Observability
from ray_configs.service import Application, Service
from tests.kuberay.cluster.api_server import ApiServer, at_once

FILLED = Placeholders(project="p", bucket="bucket")


def queued_service(name: str, namespace: str = "default") -> list[Manifest]:
    model = LLMConfig(model="demo", slice="v5e:2x4:4t", min_replicas=1, max_replicas=1)
    application = Application(config=model, capacity=Queued())
    config = Service(name=name, namespace=namespace, applications=(application,), identity=Identity())
    return FILLED.fill(render(config))


def job(name: str) -> list[Manifest]:
    return FILLED.fill(
        render(Job(name=name, command=("true",), slice="v5e:2x4:8t", ray=True, observability=Observability()))
    )


def account(name: str = "podslice") -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}


def server() -> tuple[ApiServer, Cluster]:
    found = ApiServer()
    return found, found  # type: ignore[return-value]


def lacks(server: ApiServer, objects: list[Manifest]) -> list[str]:
    return [f"{item['kind']} {item['metadata']['name']}" for item in objects if server.get(item) is None]


def test_every_pair_of_the_catalog() -> None:
    """Deleting one leaves all that the other rendered; deleting the other leaves nothing."""
    configs = [FILLED.fill(render(load(name))) for name in catalog()]
    for first, second in combinations(configs, 2):
        api, cluster = server()
        apply(cluster, first)
        apply(cluster, second)
        delete(cluster, first)
        assert lacks(api, second) == []
        delete(cluster, second)
        assert api.objects == {}


def test_any_order_of_many() -> None:
    configs = [
        *(queued_service(name) for name in "ab"),
        queued_service("a", "elsewhere"),
        job("a"),  # its PodMonitoring has the name of the service's
        FILLED.fill(render(load("ray_configs.catalog.prepare_gemma_7b_it"))),
        FILLED.fill(render(load("ray_configs.catalog.gemma_7b_it_v5e"))),
    ]
    for seed in range(12):
        chance, (api, cluster), applied = random.Random(seed), server(), set[int]()
        for _ in range(25):
            number = chance.randrange(len(configs))
            if chance.random() < 0.5:
                apply(cluster, configs[number])
                applied.add(number)
            else:
                delete(cluster, configs[number])
                applied.discard(number)
            for still in applied:
                assert lacks(api, configs[still]) == []
        for number in chance.sample(sorted(applied), len(applied)):
            delete(cluster, configs[number])
        assert api.objects == {}


@pytest.mark.parametrize("seed", range(60))
def test_a_delete_beside_an_apply(seed: int) -> None:
    """Also of a config that was applied before, and whose workload another program has deleted."""
    a, b = queued_service("a"), queued_service("b")
    api, cluster = server()
    apply(cluster, a)
    if seed % 2:
        apply(cluster, b)
        api.drop(next(item for item in b if item["kind"] == "RayService"))
    assert at_once(api, seed, lambda: delete(cluster, a), lambda: apply(cluster, b)) == []
    assert lacks(api, b) == []
    delete(cluster, b)
    assert api.objects == {}


@pytest.mark.parametrize("seed", range(30))
def test_two_at_once(seed: int) -> None:
    a, b, c = queued_service("a"), queued_service("b"), queued_service("c")
    api, cluster = server()
    assert at_once(api, seed, lambda: apply(cluster, a), lambda: apply(cluster, b), lambda: apply(cluster, c)) == []
    assert at_once(api, seed, lambda: delete(cluster, a), lambda: delete(cluster, b)) == []
    assert lacks(api, c) == []
    assert at_once(api, seed, lambda: delete(cluster, c), lambda: delete(cluster, c), lambda: delete(cluster, b)) == []
    assert api.objects == {}


def test_twice_and_never() -> None:
    a, b, never = queued_service("a"), queued_service("b"), queued_service("never")
    api, cluster = server()
    apply(cluster, a)
    apply(cluster, b)
    said: list[str] = []
    for _ in range(2):
        delete(cluster, a, progress=said.append)
        delete(cluster, never)
    assert lacks(api, b) == []
    assert "ServiceAccount podslice: stays: used by RayService default/b" in said


def test_a_user_that_kubectl_deleted_keeps_nothing() -> None:
    a, b = queued_service("a"), queued_service("b")
    api, cluster = server()
    apply(cluster, a)
    apply(cluster, b)
    for item in filter(is_workload, a):
        api.drop(item)
    delete(cluster, b)
    assert not {"ServiceAccount", "ClusterQueue", "LocalQueue"} & {kind for kind, _, _ in api.objects}


def without_notes(api: ApiServer) -> None:
    """As an older podslice applied it."""
    for item in api.objects.values():
        item["metadata"].pop("annotations", None)


def test_applied_by_a_podslice_that_noted_no_users() -> None:
    a, b = queued_service("a"), queued_service("b")
    api, cluster = server()
    apply(cluster, a)
    apply(cluster, b)
    without_notes(api)
    said: list[str] = []
    delete(cluster, a, progress=said.append)
    assert lacks(api, b) == []
    assert "ServiceAccount podslice: stays: named by RayService b" in said
    assert "ClusterQueue podslice: stays: named by LocalQueue podslice" in said
    delete(cluster, b)
    assert api.objects == {}


def test_unnoted_users_that_the_role_may_not_list() -> None:
    a = queued_service("a")
    api, cluster = server()
    apply(cluster, a)
    without_notes(api)
    api.forbidden = {"Pod", "RayService"}
    said: list[str] = []
    delete(cluster, a, progress=said.append)
    assert api.names("ServiceAccount") == ["podslice"]
    assert any("may not list Pods, RayServices" in line for line in said)


def test_what_was_there_before_stays() -> None:
    a, b = queued_service("a"), queued_service("b")
    api, cluster = server()
    api.put(account())
    apply(cluster, a)
    apply(cluster, b)
    said: list[str] = []
    delete(cluster, a)
    delete(cluster, b, progress=said.append)
    assert [kind for kind, _, _ in api.objects] == ["ServiceAccount"]
    assert any("was there before podslice" in line for line in said)
    apply(cluster, a)
    delete(cluster, a)
    assert api.names("ServiceAccount") == ["podslice"]
    delete(cluster, a, force=True)
    assert api.objects == {}


def test_a_pod_of_someone_else_that_names_it() -> None:
    a = queued_service("a")
    api, cluster = server()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs"},
        "spec": {"serviceAccountName": "podslice"},
    }
    apply(cluster, a)
    api.put(pod)
    delete(cluster, a)
    assert api.names("ServiceAccount") == ["podslice"]
    api.drop(pod)
    delete(cluster, a)
    assert api.objects == {}


def test_a_manifest_without_a_workload_is_a_user() -> None:
    a = queued_service("a")
    api, cluster = server()
    apply(cluster, [account()])
    apply(cluster, a)
    delete(cluster, a)
    assert api.names("ServiceAccount") == ["podslice"]
    delete(cluster, [account()])
    assert api.objects == {}


def test_a_value_that_another_uses_is_not_overwritten() -> None:
    a, b = queued_service("a"), Placeholders(project="q").fill(queued_service("b"))
    b[0]["metadata"]["annotations"] = {"iam.gke.io/gcp-service-account": "podslice@q.iam.gserviceaccount.com"}
    api, cluster = server()
    apply(cluster, a)
    before = api.get(a[0])
    with pytest.raises(ClusterError, match=r"RayService default/a uses it too, with other values.*--force-conflicts"):
        apply(cluster, b)
    assert api.get(a[0]) == before
    apply(cluster, b, force_conflicts=True)
    delete(cluster, a)
    assert lacks(api, b) == []


def test_a_note_of_a_newer_version_counts() -> None:
    a = queued_service("a")
    api, cluster = server()
    apply(cluster, a)
    note = {"metadata": {"annotations": {f"{USED_BY}x": "cluster://elsewhere/RayService/b"}}}
    api.patch(a[0], note)
    delete(cluster, a)
    kept = api.get(account())
    assert kept is not None and list(annotations(kept).values())[-1] == "cluster://elsewhere/RayService/b"
