"""A service without replicas in a real Ray Serve: its autoscaler says who has been noticed."""

import time
from collections.abc import Iterator

import httpx
import pytest
from ray import serve

from apps.llm import build
from apps.serving import private_ray
from apps.serving.ingress import front
from ray_configs.llm import LLMConfig
from tests.llm.serve.serving import SMALL


@pytest.fixture(scope="module")
def asleep(serve_url: str) -> Iterator[str]:
    config = LLMConfig(min_replicas=0, max_replicas=1, api_keys=["alice=secret"], **SMALL)
    serve.run(build(config), name="asleep", route_prefix="/asleep")
    yield f"{serve_url}/asleep"
    serve.delete("asleep")


def wanted() -> int:
    deployment = private_ray.applications()["asleep"]["deployments"]["LLMServer"]
    return max(deployment["target_num_replicas"], len(deployment["replicas"]))


def reached(url: str) -> None:
    """Waits until the proxies have the route."""
    deadline = time.monotonic() + 120
    while httpx.get(f"{url}/v1/models", timeout=60).status_code in (404, 503):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_only_a_key_wakes_it(asleep: str) -> None:
    reached(asleep)
    for path in ("/v1/models", "/nonsense", "/sdapi/v1/x"):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.get(f"{asleep}{path}", headers=headers, timeout=60).status_code == 401
    assert httpx.post(f"{asleep}/v1/completions", content=b"x" * 100_000, timeout=60).status_code == 401
    assert httpx.get(f"{asleep}/health", timeout=60).json() == {"status": "asleep"}
    for _ in range(50):  # 5 s; a request with a key is noticed within one
        assert wanted() == 0
        time.sleep(0.1)
    body = {"prompt": "x", "max_tokens": 2}
    reply = httpx.post(f"{asleep}/v1/completions", json=body, headers={"x-api-key": "secret"}, timeout=300)
    assert reply.status_code == 200 and wanted() == 1
    assert httpx.get(f"{asleep}/v1/models", timeout=60).status_code == 401


def test_what_a_proxy_knows_of_it(asleep: str) -> None:
    """As `private_ray` reads it from Serve's controller."""
    (seen,) = (deployed for deployed in front.deployed_now() if deployed.route == "/asleep")
    assert set(seen.keys.values()) == {"alice"}
