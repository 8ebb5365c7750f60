"""Metrics, logs and the dashboard of a running service."""

from typing import Literal

from pydantic import Field

from ray_configs.base import Config


class Observability(Config):
    """Metrics and logs."""

    pod_monitoring: bool = True
    """Google Cloud Managed Service for Prometheus scrapes every Ray Pod (podslice_* and ray_* metrics)."""
    prometheus: Literal["google", "prometheus-operator"] = "google"
    """What scrapes metrics and evaluates alerts. prometheus-operator (kube-prometheus-stack) gets a PodMonitor and a
    PrometheusRule in place of managed Prometheus' PodMonitoring and Rules."""
    dashboards: bool = False
    """Grafana dashboards, as ConfigMaps with the label `grafana_dashboard: "1"`. Services only."""
    alerts: bool = False
    """Alerting rules: lost hosts, missing replicas, errors, queues, slow first tokens and the like. Services only."""
    ttft_p95_s: float = Field(5, gt=0)
    """Alert if the 95th percentile of the time to first token exceeds this many seconds."""
    scrape_interval_s: int = Field(30, ge=5, le=3600)
    """Seconds between two scrapes; samples are billed."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Log level of Serve and its applications."""
    log_encoding: Literal["TEXT", "JSON"] = "JSON"
    """JSON lets Cloud Logging filter by application, replica and request id."""
    dashboard_auth: Literal["token", "disabled"] = "token"
    """token: Ray's dashboard and job API require the token that KubeRay keeps in a Secret named like the Ray cluster.

    Anyone who reaches an open dashboard can run code in the cluster."""
