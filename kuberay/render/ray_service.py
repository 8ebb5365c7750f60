"""A service as a RayService, and what it needs around it."""

from typing import Any

from kuberay.render.access import gateway_objects, metadata, serve_service, service_accounts
from kuberay.render.kueue import queue_labels, queue_objects
from kuberay.render.monitoring import pod_monitoring
from kuberay.render.notes import noted
from kuberay.render.ray_cluster import ray_cluster_spec
from kuberay.render.serve_config import serve_config
from kuberay.render.yaml import to_yaml
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.service import Service


def service_objects(service: Service) -> list[dict[str, Any]]:
    """ServiceAccount, queues, RayService, monitoring and the way in, as far as the config asks for them."""
    objects = [*service_accounts(service), *queue_objects(service), _ray_service(service), *pod_monitoring(service)]
    if isinstance(service.exposure, Gateway):
        objects += gateway_objects(service, service.exposure)
    return objects


def _ray_service(service: Service) -> dict[str, Any]:
    spec: dict[str, Any] = {
        noted("serveConfigV2", "Changed, it is deployed in place: Serve replaces replicas one by one."): to_yaml(
            [serve_config(service)]
        ),
        "upgradeStrategy": {
            noted(
                "type",
                "A change of rayClusterConfig is not rolled out by itself: NewCluster would need every slice twice, "
                "and wait for ever for chips that there are once. Delete and apply, or say NewCluster.",
            ): "None"
        },
    }
    if isinstance(service.exposure, LoadBalancer):
        spec["serveService"] = serve_service(service.exposure)
    spec["rayClusterConfig"] = ray_cluster_spec(service, service.head_image, service.elastic)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": metadata(service, **queue_labels(service)),
        "spec": spec,
    }
