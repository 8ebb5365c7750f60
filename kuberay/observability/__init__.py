"""What to look at and when to be woken: Grafana's boards and Prometheus' rules of one service.

    boards(service)            # name -> dashboard JSON, of the applications that the service has
    alert_groups(service)      # groups of alerting rules, as both kinds of rule object take them

`panels` holds the boards as tables of PromQL, `grafana` makes JSON of them, `alerts` holds the rules. What they query
is what the applications, Ray and Serve export on the metrics port of every Ray Pod. `kuberay/render/monitoring.py`
makes Kubernetes objects of it.
"""

from kuberay.observability.alerts import alert_groups
from kuberay.observability.grafana import boards

__all__ = ["alert_groups", "boards"]
