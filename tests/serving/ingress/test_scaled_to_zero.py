"""A service without replicas in a real Ray Serve: its autoscaler says who has been noticed."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from ray import serve

import apps.llm
import apps.stable_diffusion
from apps.serving import private_ray
from apps.serving.ingress import front
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.llm.serve.serving import SMALL

ZERO: dict[str, Any] = {"min_replicas": 0, "max_replicas": 1, "api_keys": ["alice=secret"]}


class Asleep(NamedTuple):
    """An application without replicas, and what it is asked."""

    name: str
    url: str
    path: str
    body: dict[str, Any]
    key: dict[str, str]

    @property
    def wanted(self) -> int:
        """Replicas that Serve wants for it, or still has."""
        (deployment,) = private_ray.applications()[self.name]["deployments"].values()
        return max(deployment["target_num_replicas"], len(deployment["replicas"]))


@pytest.fixture(scope="module", params=["words", "pictures"])
def asleep(serve_url: str, request: pytest.FixtureRequest) -> Iterator[Asleep]:
    name = f"asleep-{request.param}"
    if request.param == "words":
        application = apps.llm.build(LLMConfig(**SMALL, **ZERO))
        key = {"x-api-key": "secret"}
        path, body = "/v1/completions", {"prompt": "x", "max_tokens": 2}
    else:
        demo = StableDiffusionConfig.demo()
        fields = {field: getattr(demo, field) for field in demo.model_fields_set}
        application = apps.stable_diffusion.build(StableDiffusionConfig(**fields | ZERO))
        key = {"Authorization": "Bearer secret"}
        path, body = "/sdapi/v1/txt2img", {"prompt": "x", "steps": 1, "width": 64, "height": 64}
    serve.run(application, name=name, route_prefix=f"/{name}")
    yield Asleep(name, f"{serve_url}/{name}", path, body, key)
    serve.delete(name)


def reached(url: str) -> None:
    """Waits until the proxies have the route."""
    deadline = time.monotonic() + 120
    while httpx.get(f"{url}/v1/models", timeout=60).status_code in (404, 503):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_only_a_key_wakes_it(asleep: Asleep) -> None:
    reached(asleep.url)
    for path in ("/v1/models", "/nonsense", "/sdapi/v1/x"):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.get(f"{asleep.url}{path}", headers=headers, timeout=60).status_code == 401
    assert httpx.post(f"{asleep.url}{asleep.path}", content=b"x" * 100_000, timeout=60).status_code == 401
    assert httpx.get(f"{asleep.url}/health", timeout=60).json() == {"status": "asleep"}
    for _ in range(50):  # 5 s; a request with a key is noticed within one
        assert asleep.wanted == 0
        time.sleep(0.1)
    reply = httpx.post(f"{asleep.url}{asleep.path}", json=asleep.body, headers=asleep.key, timeout=300)
    assert reply.status_code == 200 and asleep.wanted == 1
    assert httpx.get(f"{asleep.url}/v1/models", timeout=60).status_code == 401


def test_what_a_proxy_knows_of_it(asleep: Asleep) -> None:
    """As `private_ray` reads it from Serve's controller."""
    (seen,) = (deployed for deployed in front.deployed_now() if deployed.route == f"/{asleep.name}")
    assert set(seen.keys.values()) == {"alice"}
