"""A service as a RayService, and the objects that it needs."""

from typing import Any

from kuberay.render.access import gateway_objects, serve_service, service_accounts
from kuberay.render.disruption import disruption_budgets
from kuberay.render.kueue import queue_labels, queue_objects
from kuberay.render.monitoring import boards_and_alerts, pod_monitoring
from kuberay.render.notes import noted
from kuberay.render.objects import kubernetes_object, metadata
from kuberay.render.ray.ray_cluster import ray_cluster_spec
from kuberay.render.ray.serve_config import serve_config
from kuberay.render.yaml import to_yaml
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.service import Service
from ray_configs.upgrade import Incremental, NewCluster


def service_objects(service: Service) -> list[dict[str, Any]]:
    """The RayService, and ServiceAccounts, queues, monitoring, budgets and Gateway if the config asks for them."""
    objects = [*service_accounts(service), *queue_objects(service), _ray_service(service), *pod_monitoring(service)]
    objects += [*boards_and_alerts(service), *disruption_budgets(service)]
    if isinstance(service.exposure, Gateway):
        objects += gateway_objects(service, service.exposure)
    return objects


def _ray_service(service: Service) -> dict[str, Any]:
    spec: dict[str, Any] = {
        noted("serveConfigV2", "A change is deployed in place: Serve replaces replicas one by one."): to_yaml(
            [serve_config(service)]
        ),
        "upgradeStrategy": _upgrade_strategy(service.upgrade),
    }
    if isinstance(service.exposure, LoadBalancer):
        spec["serveService"] = serve_service(service.exposure)
    spec["rayClusterConfig"] = ray_cluster_spec(service, service.head_image, service.elastic)
    return kubernetes_object("ray.io/v1", "RayService", metadata(service, **queue_labels(service)), spec)


def _upgrade_strategy(upgrade: NewCluster | Incremental | None) -> dict[str, Any]:
    """How a change of rayClusterConfig is rolled out."""
    if upgrade is None:
        why = (
            "A change of rayClusterConfig is not rolled out by default: a second cluster would need every slice again "
            "and wait forever for chips that exist once. `python -m kuberay apply --recreate` rolls it out with a "
            "pause; `upgrade` in the config does without one."
        )
        return {noted("type", why): "None"}
    if isinstance(upgrade, NewCluster):
        why = (
            "A change of rayClusterConfig creates a second cluster, which needs every slice again; requests move to it "
            "when it serves."
        )
        return {noted("type", why): "NewCluster"}
    why = "A change of rayClusterConfig creates a second cluster, which takes over requests and slices step by step."
    return {
        noted("type", why): "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": upgrade.gateway_class,
            "intervalSeconds": upgrade.interval_s,
            "maxSurgePercent": upgrade.max_surge_percent,
            "stepSizePercent": upgrade.step_percent,
        },
    }
