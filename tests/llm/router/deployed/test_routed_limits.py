"""Limits of callers hold over two routers under Ray Serve: what one has let in, the other one knows."""

import time
from collections.abc import Iterator

import httpx
import pytest

from apps.llm.shared_limits import PERIOD_S
from tests.llm.serve.serving import SMALL, serve_cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME, PER_MINUTE = "limited", 200


@pytest.fixture(scope="module")
def service(ray_cluster: str, serve_url: str) -> Iterator[str]:
    options = SMALL | {"routers": 2, "callers": f'{{"anonymous": {{"tokens_per_minute": {PER_MINUTE}}}}}'}
    arguments = ("--name", NAME, "--route-prefix", f"/{NAME}", "apps.llm:build")
    settings = [f"{key}={value}" for key, value in options.items()]
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, *arguments, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    yield f"{serve_url}/{NAME}"
    from ray import serve

    serve.delete(NAME)


def test_a_caller_that_has_overdrawn_at_one_router_waits_at_both(service: str) -> None:
    """Serve sends requests to either router, so of eight, some reach the one that let nothing in."""
    body = {"prompt": "The days of the week are", "max_tokens": PER_MINUTE + 50, "ignore_eos": True}
    assert httpx.post(f"{service}/v1/completions", json=body, timeout=300).status_code == 200
    time.sleep(4 * PERIOD_S)
    answers = [httpx.post(f"{service}/v1/completions", json=body, timeout=300) for _ in range(8)]
    assert [answer.status_code for answer in answers] == [429] * 8
    assert all(1 <= int(answer.headers["retry-after"]) <= 20 for answer in answers)
    assert "tokens_per_minute" in answers[0].text
