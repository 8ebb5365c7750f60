"""Metrics for Google Cloud Managed Service for Prometheus."""

from typing import Any

from kuberay.render.objects import kubernetes_object, metadata
from kuberay.render.ray.pods import INSTANCE_LABEL, Config

METRICS_PORT = 8080
"""The metrics port of every Ray node, as KubeRay sets it."""


def pod_monitoring(config: Config) -> list[dict[str, Any]]:
    """Scrapes every Ray Pod of the config."""
    if not config.observability.pod_monitoring:
        return []
    spec = {
        "selector": {"matchLabels": {INSTANCE_LABEL: config.name}},
        "endpoints": [{"port": METRICS_PORT, "interval": f"{config.observability.scrape_interval_s}s"}],
    }
    return [kubernetes_object("monitoring.googleapis.com/v1", "PodMonitoring", metadata(config), spec)]
