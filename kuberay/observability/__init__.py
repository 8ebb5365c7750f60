"""Grafana dashboards and Prometheus alerting rules of a service.

    boards(service)            # name -> dashboard JSON, for the service's applications
    alert_groups(service)      # groups of alerting rules, in the format of both kinds of rule object

boards.yaml has the panels and alerts.yaml the rules, in PromQL; `grafana` and `alerts` choose those that apply to a
service. They query the metrics of the applications, Ray and Serve on every Ray Pod. `kuberay/render/monitoring.py`
wraps both in Kubernetes objects.
"""

from kuberay.observability.alerts import alert_groups
from kuberay.observability.grafana import boards

__all__ = ["alert_groups", "boards"]
