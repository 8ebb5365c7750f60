"""The boards that a service has, from the panels in boards.yaml."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig


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
