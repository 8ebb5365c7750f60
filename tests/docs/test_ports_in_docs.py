"""The table of ports in docs/gke/manifests.md. Oracles: the rendered manifests, what the real operator made of them
(tests/kubernetes/recorded), and the defaults in Ray's own code and in the kernel.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray._private import ray_constants
from ray.scripts.scripts import start
from ray.serve._private import constants

from kuberay.render import render
from ray_configs.loading import catalog, load
from tests.kubernetes.recording import RECORDED

PAGE = Path(__file__).parents[2] / "docs/gke/manifests.md"
FREE = (32768, 60999)
"""Linux's default range of ports that a program gets without asking for one: net.ipv4.ip_local_port_range."""


def told() -> list[tuple[int, int]]:
    """The ranges of ports in the table."""
    table = PAGE.read_text().partition("## Ports")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if re.match(r"\| \d", line)]
    found = []
    for cell in cells:
        for part in cell.split(","):
            first, _, last = part.strip().partition(" to ")
            found.append((int(first), int(last or first)))
    return found


def numbers(value: Any) -> Iterator[int]:
    """Ports in manifests: of containers and probes, and in `ray start`'s flags."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("containerPort", "targetPort") and isinstance(inner, int):
                yield inner
            elif key == "httpGet":
                yield int(inner["port"])
            else:
                yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, str):
        yield from (
            int(port) for port in re.findall(r"--[\w-]*port[= ](\d+)|localhost:(\d+)", value) for port in port if port
        )


def of_ray() -> dict[str, tuple[int, int]]:
    """What Ray's own code says of ports that no manifest sets."""
    defaults = {option.name: option.default for option in start.params}
    return {
        "workers": (defaults["min_worker_port"], defaults["max_worker_port"]),
        "agent": (ray_constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT,) * 2,
        "replicas": (
            constants.RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT,
            constants.RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT,
        ),
        "fallback": (constants.RAY_SERVE_FALLBACK_PROXY_HTTP_PORT,) * 2,
        "any free one": FREE,
    }


def has(first: int, last: int) -> bool:
    return any(low <= first and last <= high for low, high in told())


@pytest.mark.parametrize("name", catalog())
def test_every_rendered_port_is_told(name: str) -> None:
    missing = [port for port in set(numbers(render(load(name)))) if not has(port, port)]
    assert not missing


def test_every_port_that_the_operator_adds_is_told() -> None:
    files = sorted(RECORDED.glob("*/*.json"))
    assert files
    for file in files:
        missing = [port for port in set(numbers(json.loads(file.read_text())["pods"])) if not has(port, port)]
        assert not missing, file


@pytest.mark.parametrize("what", of_ray())
def test_every_default_of_ray_is_told(what: str) -> None:
    assert has(*of_ray()[what])


def test_nothing_is_told_that_is_not_so() -> None:
    known = set(of_ray().values())
    for file in RECORDED.glob("*/*.json"):
        known |= {(port, port) for port in numbers(json.loads(file.read_text())["pods"])}
    env = json.dumps(render(load("ray_configs.catalog.models.qwen3_coder_480b")))  # on v6e, several hosts
    known |= {(int(port), int(port)) for port in re.findall(r"\$\(NODE_IP\):(\d+)", env)}
    assert set(told()) <= known
