"""The alerting rules that a service has, from alerts.yaml."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from kuberay.observability.grafana import of_service, picked
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

INTERVAL_S = 30
"""Seconds between two evaluations."""


def alert_groups(service: Service) -> list[dict[str, Any]]:
    """The `groups` of a Rules or PrometheusRule object."""
    rules = [_rule(rule, service, values) for part, values in _parts(service) for rule in _written()[part]]
    return [{"name": service.name, "interval": f"{INTERVAL_S}s", "rules": rules}]


@cache
def _written() -> dict[str, list[dict[str, Any]]]:
    return YAML(typ="safe").load(Path(__file__).with_name("alerts.yaml"))


def _parts(service: Service) -> Iterator[tuple[str, dict[str, object]]]:
    """The parts of alerts.yaml that apply, and the values of their placeholders."""
    kinds = {type(app.config) for app in service.applications}
    yield "every service", {}
    if kinds & {LLMConfig, CellConfig}:
        yield "language models", {"TTFT_S": f"{service.observability.ttft_p95_s:g}"}
    if StableDiffusionConfig in kinds:
        yield "pictures", {}
    for group in service.worker_groups:
        if group.slice:
            yield "each group of slices", {"GROUP": group.name, "HOSTS": group.hosts, "MINIMUM": group.minimum}


def _rule(written: dict[str, Any], service: Service, values: dict[str, object]) -> dict[str, Any]:
    def filled(text: str) -> str:
        for placeholder, value in {"NAME": service.name, **values}.items():
            text = text.replace(placeholder, str(value))
        return text

    return written | {
        "expr": picked(filled(written["expr"]), *of_service(service)),
        "labels": {**written["labels"], "service": service.name},
        "annotations": {name: filled(text) for name, text in written["annotations"].items()},
    }
