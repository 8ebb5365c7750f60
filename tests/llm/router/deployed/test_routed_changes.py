"""A service with a router is changed in place, as `serve deploy` and the operator do it, while it answers.

The oracle is each config's own undisturbed answer: a client gets the one or the other, whole, and never a third.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.llm.serve.serving import SMALL, serve_cli, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NAME = "changed"
ASKED = {"prompt": "The days of the week are", "max_tokens": 150, "temperature": 0, "ignore_eos": True}


class Service:
    """One application, which `change` replaces by another config's."""

    def __init__(self, cluster: str, url: str, replicas: int):
        self._cluster, self.url = cluster, f"{url}/{NAME}/v1/completions"
        self._size = {"min_replicas": replicas, "max_replicas": replicas, "routers": replicas}

    def change(self, **fields: Any) -> None:
        options = SMALL | {"dtype": "float32", "drain_timeout_s": 60} | self._size | fields
        arguments = ("--name", NAME, "--route-prefix", f"/{NAME}", "apps.llm:build")
        settings = [f"{key}={value}" for key, value in options.items()]
        done = serve_cli("run", "--non-blocking", "--address", self._cluster, *arguments, *settings)
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, stream: bool = False, **fields: Any) -> tuple[int | str, str]:
        """A status, and the text or the error's. What ends before its first token has the error's own status."""
        with httpx.stream("POST", self.url, json=ASKED | {"stream": stream} | fields, timeout=600) as answer:
            body = answer.read().decode()
        if answer.status_code != 200:
            return answer.status_code, body
        if not stream:
            return 200, json.loads(body)["choices"][0]["text"]
        events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", body
        first = json.loads(events[0])
        if "error" in first:
            return first["error"]["code"], first["error"]["message"]
        return 200, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


@pytest.fixture(scope="module", params=[1, 2], ids=["one of each", "two of each"])
def service(request: pytest.FixtureRequest, ray_cluster: str, serve_url: str) -> Iterator[Service]:
    service = Service(ray_cluster, serve_url, request.param)
    service.change()
    yield service
    from ray import serve

    serve.delete(NAME)


@contextmanager
def traffic(service: Service) -> Iterator[Counter[tuple[int | str, str]]]:
    """Four clients, two of them of streams, for as long as the block lasts; what they got, each with how often."""
    got, failures, ends = Counter[tuple[int | str, str]](), list[BaseException](), threading.Event()

    def ask(stream: bool) -> None:
        while not ends.is_set():
            try:
                got[service.ask(stream)] += 1
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=ask, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield got
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def test_another_limit_holds_and_no_answer_notices(service: Service) -> None:
    right = service.ask()
    assert right[0] == 200
    with traffic(service) as got:
        service.change(max_model_len=200)
        wait_until(lambda: service.ask(max_tokens=400)[0] == 400, 600)
    assert set(got) == {right} and sum(got.values()) > 8, got
    assert [service.ask(max_tokens=400)[0] for _ in range(4)] == [400] * 4


def test_another_model_answers_for_itself(service: Service) -> None:
    before = service.ask()
    with traffic(service) as got:
        service.change(random_weights=True)
        wait_until(lambda: service.ask()[0] == 200 and service.ask() != before, 600)
    after = service.ask()
    assert after[0] == 200 and after != before
    assert {answer for answer in got if answer[0] == 200} <= {before, after}, got
    # Whoever came to the router of before once its engines were gone.
    assert {status for status, _ in got} <= {200, 503, "engine_stopped"}, got
