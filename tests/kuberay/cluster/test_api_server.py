"""The double keeps the rules that the other tests lean on; asked through the real client."""

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_kube_config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from manifests_of_a_service import service


@pytest.fixture
def ray_services(server, tmp_path):
    configuration = Configuration()
    load_kube_config(server.kubeconfig(tmp_path / "config"), client_configuration=configuration)
    client = DynamicClient(ApiClient(configuration), cache_file=str(tmp_path / "discovery"))
    return client.resources.get(api_version="ray.io/v1", kind="RayService")


def test_create_replace_and_delete(server, ray_services):
    made = ray_services.create(body=service(), namespace="default")
    assert made.metadata.generation == 1
    with pytest.raises(ConflictError):
        ray_services.create(body=service(), namespace="default")
    with pytest.raises(NotFoundError):
        ray_services.create(body=service(), namespace="nowhere")
    body = made.to_dict()
    body["spec"]["serveConfigV2"] = "other: 1\n"
    replaced = ray_services.replace(body=body, namespace="default")
    assert replaced.metadata.generation == 2
    with pytest.raises(ConflictError):  # the resourceVersion is the old one
        ray_services.replace(body=body, namespace="default")
    ray_services.delete(name="llama", namespace="default")
    assert server.store.find("RayService", "llama") is None


def test_the_status_subresource_writes_the_status_alone(server, ray_services):
    ray_services.create(body=service(), namespace="default")
    body = service() | {"status": {"numServeEndpoints": 2}, "spec": {}}
    ray_services.status.replace(body=body, namespace="default", name="llama", field_manager="kuberay-operator")
    live = server.store.find("RayService", "llama")
    assert live["spec"] == service()["spec"]
    assert live["status"] == {"numServeEndpoints": 2}
    assert live["metadata"]["generation"] == 1
    status_owner = live["metadata"]["managedFields"][-1]
    assert (status_owner["manager"], status_owner["subresource"]) == ("kuberay-operator", "status")


def test_two_appliers_share_an_object(server, ray_services):
    def apply(manager, **metadata):
        body = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "llama"} | metadata}
        return ray_services.server_side_apply(body=body, namespace="default", field_manager=manager)

    apply("one", labels={"a": "1", "shared": "x"})
    apply("two", labels={"b": "2", "shared": "x"})
    assert apply("one", labels={"a": "1"}).metadata.labels.to_dict() == {"a": "1", "b": "2", "shared": "x"}
    assert apply("two", labels={"b": "2"}).metadata.labels.to_dict() == {"a": "1", "b": "2"}
    with pytest.raises(ConflictError):
        apply("two", labels={"a": "2"})
