"""Engines behind a router come with traffic, from none. The controller that decides is Ray Serve's."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.llm.serve.serving import SMALL, serve_cli, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NAME = "scaled"


@pytest.fixture(scope="module")
def service(ray_cluster: str, serve_url: str) -> Iterator[str]:
    options = SMALL | {"min_replicas": 0, "max_replicas": 2, "routers": 1, "target_ongoing_requests": 2}
    arguments = ("--name", NAME, "--route-prefix", f"/{NAME}", "apps.llm:build")
    settings = [f"{key}={value}" for key, value in options.items()]
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, *arguments, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    yield f"{serve_url}/{NAME}"
    from ray import serve

    serve.delete(NAME)


def engines() -> int:
    from ray import serve

    return serve.status().applications[NAME].deployments["LLMEngine"].replica_states.get("RUNNING", 0)


def test_engines_come_with_their_requests(service: str) -> None:
    """The router needs one to know the model, and so has Serve start it; a second one comes for four streams."""
    assert engines() == 1
    body = {"prompt": "The days of the week are", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    refused, asking = list[str](), threading.Event()

    def ask() -> None:
        while not asking.is_set():
            answer = httpx.post(f"{service}/v1/completions", json=body, timeout=600)
            if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != body["max_tokens"]:
                refused.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: engines() == 2, 600)
    finally:
        asking.set()
        for thread in threads:
            thread.join()
    assert not refused
