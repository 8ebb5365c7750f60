"""The boards that a service has, from the panels in boards.yaml, as Grafana's JSON.

A board is two columns of charts under variables for data source, cluster and application.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

SCHEMA = 39
"""Of Grafana 10 and 11; later versions read it too."""
WIDTH, HEIGHT = 12, 8
"""Size of a chart in Grafana's grid, which has 24 columns."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A chart."""

    title: str
    lines: dict[str, str]
    """PromQL by the line's name, in which {{label}} is a label of the series."""
    unit: str = "short"
    """Grafana's name of the unit; `suffix:TEXT` appends any text."""
    about: str = ""
    """Description for the reader."""


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    by_application: str = ""
    """A metric whose applications the reader can choose from; empty: the board has no such choice."""


@cache
def _panels() -> dict[str, tuple[Panel, ...]]:
    written = YAML(typ="safe").load(Path(__file__).with_name("boards.yaml"))
    return TypeAdapter(dict[str, tuple[Panel, ...]]).validate_python(written)


def of_service(service: Service) -> tuple[str, str]:
    """Matchers of all its series: both PodMonitoring and PodMonitor use the service's name as job."""
    return f'namespace="{service.namespace}"', f'job="{service.name}"'


def picked(expression: str, *matchers: str) -> str:
    """The expression with each @ replaced by matchers such as `job="llm"`."""
    inside = ",".join(matchers)
    return expression.replace("@{", f"{{{inside},").replace("@", f"{{{inside}}}")


def boards_of(service: Service) -> list[Board]:
    """The boards that apply to the service's applications."""
    panels, kinds = _panels(), {type(app.config) for app in service.applications}
    cells = "|".join(app.serve_name for app in service.applications if isinstance(app.config, CellConfig))
    found = []
    if kinds & {LLMConfig, CellConfig}:
        shown = panels["language models"]
        if LLMConfig not in kinds:  # published models answer through the cell: they have no answers of their own
            shown = tuple(panel for panel in shown if panel.title != "Answers by status")
        if any(isinstance(app.config, LLMConfig) and app.config.router_count for app in service.applications):
            shown += panels["routers"]
        found.append(Board("language-models", "language models", shown, "ray_podslice_requests_running"))
    if StableDiffusionConfig in kinds:
        found.append(Board("pictures", "pictures", panels["pictures"], "ray_podslice_pictures_running"))
    if cells:
        named = [{line: text.replace("CELLS", cells) for line, text in panel.lines.items()} for panel in panels["cell"]]
        shown = tuple(replace(panel, lines=lines) for panel, lines in zip(panels["cell"], named))
        found.append(Board("cell", "cell", shown))
    parts = {
        "pods": True,
        "slices": any(app.config.slice for app in service.applications),
        "autoscaler": service.elastic,
    }
    shown = tuple(panel for part, applies in parts.items() if applies for panel in panels[part])
    return [*found, Board("slices", "slices and replicas", shown)]


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
