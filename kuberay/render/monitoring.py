"""Metrics, boards and alerts: objects of managed Prometheus or of prometheus-operator, and ConfigMaps for Grafana."""

from typing import Any

from kuberay.observability import alert_groups, boards
from kuberay.render.objects import kubernetes_object, metadata
from kuberay.render.ray.pods import INSTANCE_LABEL, Config
from ray_configs.service import Service

METRICS_PORT = 8080
"""The metrics port of every Ray node, as KubeRay sets it, under the name `metrics`."""
GOOGLE, OPERATOR = "monitoring.googleapis.com/v1", "monitoring.coreos.com/v1"
BOARD_LABEL = {"grafana_dashboard": "1"}
"""The label by which the sidecar of Grafana's Helm charts finds boards."""


def pod_monitoring(config: Config) -> list[dict[str, Any]]:
    """Scrapes every Ray Pod of the config, whose name is that of the Prometheus job."""
    if not config.observability.pod_monitoring:
        return []
    pods = {"matchLabels": {INSTANCE_LABEL: config.name}}
    interval = f"{config.observability.scrape_interval_s}s"
    if config.observability.prometheus == "google":
        spec = {"selector": pods, "endpoints": [{"port": METRICS_PORT, "interval": interval}]}
        return [kubernetes_object(GOOGLE, "PodMonitoring", metadata(config), spec)]
    endpoints = [{"port": "metrics", "interval": interval}]
    spec = {"jobLabel": INSTANCE_LABEL, "selector": pods, "podMetricsEndpoints": endpoints}
    return [kubernetes_object(OPERATOR, "PodMonitor", metadata(config), spec)]


def boards_and_alerts(service: Service) -> list[dict[str, Any]]:
    """A ConfigMap for each board, and the alerting rules, if the config asks for them."""
    wanted, objects = service.observability, []
    for name, board in boards(service).items() if wanted.dashboards else ():
        about = metadata(service, f"{service.name}-board-{name}", labels=BOARD_LABEL)
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {f"{about['name']}.json": board}}
        )
    if wanted.alerts:
        api, kind = (GOOGLE, "Rules") if wanted.prometheus == "google" else (OPERATOR, "PrometheusRule")
        objects.append(kubernetes_object(api, kind, metadata(service), {"groups": alert_groups(service)}))
    return objects
