"""Objects that two configs render under one name: what the real API server has left after each command."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kuberay import cluster as client
from kuberay.render import render, to_yaml
from kuberay.source import Placeholders
from ray_configs.capacity import Queued
from ray_configs.cloud import Identity
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import load
from ray_configs.service import Application, Service
from tests.kubernetes.cluster.served import Manifest, live, there, until
from tests.kubernetes.clusters import Cluster

QUEUE_KINDS = "clusterqueues,resourceflavors,admissionchecks,provisioningrequestconfigs"


Connect = Callable[[], client.Cluster]


@pytest.fixture
def connect(control_plane: Cluster, namespace: str) -> Connect:
    """Makes a connection: commands at once have one each."""
    return lambda: client.Cluster.connect(None, namespace, str(control_plane.kubeconfig))


@pytest.fixture
def connected(connect: Connect) -> client.Cluster:
    return connect()


@pytest.fixture
def queue(control_plane: Cluster, namespace: str) -> Iterator[str]:
    """The name of a queue of this test's own, as most of what it needs belongs to no namespace."""
    yield f"queue-{namespace}"
    assert [name for name in there(control_plane, namespace, QUEUE_KINDS) if namespace in name] == []


def filled(config: Service | Job, namespace: str) -> list[Manifest]:
    return Placeholders(project="p", bucket="bucket").fill(render(config.model_copy(update={"namespace": namespace})))


def queued(name: str, queue: str, namespace: str) -> list[Manifest]:
    model = LLMConfig(model="demo", slice="v5e:2x4:4t", min_replicas=1, max_replicas=1)
    application = Application(config=model, capacity=Queued(queue=queue))
    return filled(Service(name=name, applications=(application,), identity=Identity()), namespace)


def lacks(connected: client.Cluster, objects: list[Manifest]) -> list[str]:
    return [f"{item['kind']} {item['metadata']['name']}" for item in objects if connected.get(item) is None]


def at_once(*commands: Callable[[], Any]) -> None:
    raised: list[BaseException] = []

    def run(command: Callable[[], Any]) -> None:
        try:
            command()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(command,)) for command in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


def test_two_of_the_catalog(connected: client.Cluster, namespace: str, control_plane: Cluster) -> None:
    """Pods of the second go on to be made: the API server itself refuses a Pod whose service account is missing."""
    first = filled(load("ray_configs.catalog.prepare_gemma_7b_it"), namespace)
    second = filled(load("ray_configs.catalog.gemma_7b_it_v5e"), namespace)
    client.apply(connected, first)
    client.apply(connected, second)
    said: list[str] = []
    client.delete(connected, first, progress=said.append)
    assert lacks(connected, second) == []
    assert f"ServiceAccount podslice: stays: used by RayService {namespace}/gemma-7b-it" in said
    pods = until("the operator's Pods", lambda: there(control_plane, namespace, "pods"))
    control_plane.kubectl("-n", namespace, "delete", *pods, "--wait=false", "--grace-period=0", "--force")
    again = until("new Pods", lambda: set(there(control_plane, namespace, "pods")) - set(pods))
    accounts = {live(control_plane, namespace, *name.split("/"))["spec"]["serviceAccountName"] for name in again}
    assert "podslice" in accounts
    client.delete(connected, second)
    assert len(lacks(connected, first + second)) == len(first + second)


def test_a_queue_and_an_account(connect: Connect, connected: client.Cluster, queue: str, namespace: str) -> None:
    a, b, c = (queued(name, queue, namespace) for name in ("a", "b", "c"))
    at_once(*(lambda objects=objects: client.apply(connect(), objects) for objects in (a, b, c)))
    at_once(*(lambda objects=objects: client.delete(connect(), objects) for objects in (a, b)))
    assert lacks(connected, c) == []
    at_once(*(lambda objects=objects: client.delete(connect(), objects) for objects in (c, c, a)))
    assert len(lacks(connected, c)) == len(c)


def test_a_delete_beside_an_apply(connect: Connect, connected: client.Cluster, queue: str, namespace: str) -> None:
    a, b = queued("a", queue, namespace), queued("b", queue, namespace)
    for _ in range(3):
        client.apply(connected, a)
        at_once(lambda: client.delete(connect(), a), lambda: client.apply(connect(), b))
        assert lacks(connected, b) == []
        at_once(lambda: client.apply(connect(), a), lambda: client.delete(connect(), b))
        assert lacks(connected, a) == []
        client.delete(connected, a)
        assert len(lacks(connected, a)) == len(a)


def test_of_an_older_podslice_and_of_kubectl(
    connected: client.Cluster, control_plane: Cluster, queue: str, namespace: str
) -> None:
    """Neither notes users; `b` names the account and the queue."""
    a, b = queued("a", queue, namespace), queued("b", queue, namespace)
    for options in (("--field-manager=podslice",), ("--force-conflicts",)):
        for objects in (a, b):
            control_plane.kubectl("apply", "--server-side", *options, "-f", "-", input=to_yaml(objects))
        said: list[str] = []
        client.delete(connected, a, force=True, progress=said.append)
        assert lacks(connected, b) == []
        assert any(line.startswith("ServiceAccount podslice: stays: named by ") for line in said)
        client.delete(connected, b, force=True)
        assert len(lacks(connected, a + b)) == len(a + b)


def test_a_user_that_kubectl_deleted(
    connected: client.Cluster, control_plane: Cluster, queue: str, namespace: str
) -> None:
    a, b = queued("a", queue, namespace), queued("b", queue, namespace)
    client.apply(connected, a)
    client.apply(connected, b)
    control_plane.kubectl("-n", namespace, "delete", "rayservice", "a")
    client.delete(connected, b)
    assert len(lacks(connected, b)) == len(b)


def test_an_account_that_was_there_before(
    connected: client.Cluster, control_plane: Cluster, queue: str, namespace: str
) -> None:
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", "podslice")
    before = live(control_plane, namespace, "serviceaccount", "podslice")["metadata"]["uid"]
    a = queued("a", queue, namespace)
    for _ in range(2):
        client.apply(connected, a)
        client.delete(connected, a)
    assert live(control_plane, namespace, "serviceaccount", "podslice")["metadata"]["uid"] == before


def test_applying_again_by_any_tool_keeps_the_users(
    connected: client.Cluster, control_plane: Cluster, queue: str, namespace: str
) -> None:
    a, b = queued("a", queue, namespace), queued("b", queue, namespace)
    client.apply(connected, a)
    client.apply(connected, b)
    control_plane.kubectl("apply", "-f", "-", input=to_yaml(a))
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=to_yaml(a))
    assert client.diff(connected, b) == ""
    client.delete(connected, a)
    assert lacks(connected, b) == []
    client.delete(connected, b)


def test_another_projects_account_is_not_overwritten(connected: client.Cluster, queue: str, namespace: str) -> None:
    a, b = queued("a", queue, namespace), queued("b", queue, namespace)
    (annotations,) = (item["metadata"]["annotations"] for item in b if item["kind"] == "ServiceAccount")
    client.apply(connected, a)
    before = connected.get(a[0])
    annotations["iam.gke.io/gcp-service-account"] = "podslice@q.iam.gserviceaccount.com"
    with pytest.raises(client.ClusterError, match=f"RayService {namespace}/a uses it too, with other values"):
        client.apply(connected, b)
    assert connected.get(a[0]) == before and lacks(connected, b)
    client.delete(connected, a)
