"""Grafana dashboards and Prometheus alerting rules of a service.

    boards(service)            # name -> dashboard JSON, for the service's applications
    alert_groups(service)      # groups of alerting rules, in the format of both kinds of rule object

`panels` defines the boards as tables of PromQL, `grafana` writes their JSON, `alerts` has the rules. They query the
metrics of the applications, Ray and Serve on every Ray Pod. `kuberay/render/monitoring.py` wraps both in Kubernetes
objects.
"""

from kuberay.observability.alerts import alert_groups
from kuberay.observability.grafana import boards

__all__ = ["alert_groups", "boards"]
