"""Engines behind a router come with traffic, from none. The controller that decides is Ray Serve's."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from apps.llm import build, routed
from apps.serving.replica_options import options
from ray_configs.llm import LLMConfig
from tests.llm.router.deployed.running import replicas
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


def engines(app: str = NAME) -> int:
    from ray import serve

    return serve.status().applications[app].deployments["LLMEngine"].replica_states.get("RUNNING", 0)


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


def test_the_last_engine_goes_and_comes_again(serve_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for a while, so Serve stops it; whoever asks then waits for the next one."""
    from ray import serve

    def hasty(config: LLMConfig) -> dict[str, Any]:
        chosen = options(config)
        chosen["autoscaling_config"] |= {"downscale_delay_s": 5, "downscale_to_zero_delay_s": 5}  # not ten minutes
        return chosen

    monkeypatch.setattr(routed, "options", hasty)
    config = LLMConfig(min_replicas=0, max_replicas=1, routers=1, drain_timeout_s=5, **SMALL)
    serve.run(build(config), name="again", route_prefix="/again")
    try:
        body = {"prompt": "The days of the week are", "max_tokens": 20, "ignore_eos": True, "temperature": 0}
        answers = []
        for _ in range(2):
            if answers:  # a router that comes anew pays for no engine
                (lost,) = replicas("again", "LLMRouter").values()
                os.kill(lost, signal.SIGKILL)
                wait_until(lambda lost=lost: [*replicas("again", "LLMRouter").values()] not in ([lost], []), 300)
                wait_until(lambda: httpx.get(f"{serve_url}/again/v1/models", timeout=60).status_code == 200, 120)
                assert not serve.status().applications["again"].deployments["LLMEngine"].replica_states
            answer = httpx.post(f"{serve_url}/again/v1/completions", json=body, timeout=600)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"][0]["text"])
            wait_until(lambda: engines("again") == 0, 120)
        assert answers[0] == answers[1]
    finally:
        serve.delete("again")
