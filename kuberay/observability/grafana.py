"""Dashboards as Grafana's JSON: two columns of charts under variables for data source, cluster and application."""

import json
from hashlib import sha256
from typing import Any

from kuberay.observability.panels import Board, Panel, boards_of, of_service, picked
from ray_configs.service import Service

SCHEMA = 39
"""Of Grafana 10 and 11; later versions read it too."""
WIDTH, HEIGHT = 12, 8
"""Size of a chart in Grafana's grid, which has 24 columns."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def boards(service: Service) -> dict[str, str]:
    """Dashboards as JSON, by name."""
    return {board.name: json.dumps(dashboard(service, board), indent=1) + "\n" for board in boards_of(service)}


def dashboard(service: Service, board: Board) -> dict[str, Any]:
    """One dashboard. Its uid depends on service and board alone, so rendering again replaces it and links survive."""
    identity = f"{service.namespace}/{service.name}/{board.name}"
    labels = [*of_service(service), 'cluster=~"$cluster"']
    # A Prometheus of one cluster has no cluster label; .* matches that too.
    choices = [_choice("cluster", picked("label_values(up@, cluster)", *labels[:2])) | {"allValue": ".*"}]
    if board.by_application:
        known = picked(f"label_values({board.by_application}@, application)", *labels)
        choices.append(_choice("application", known))
        labels.append('application=~"$application"')
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"podslice-{sha256(identity.encode()).hexdigest()[:20]}",
        "title": f"{service.name}: {board.title}",
        "tags": ["podslice"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *choices]},
        "panels": [_chart(place, panel, labels) for place, panel in enumerate(board.panels)],
    }


def _choice(name: str, query: str) -> dict[str, Any]:
    """A variable of the dashboard; initially all values are selected."""
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,  # whenever the time range changes
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _chart(place: int, panel: Panel, labels: list[str]) -> dict[str, Any]:
    row, column = divmod(place, 24 // WIDTH)
    targets = [
        {"refId": chr(ord("A") + number), "legendFormat": name, "expr": picked(expression, *labels)}
        for number, (name, expression) in enumerate(panel.lines.items())
    ]
    chart = {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}},
        "targets": targets,
    }
    return chart | {"description": panel.about} if panel.about else chart
