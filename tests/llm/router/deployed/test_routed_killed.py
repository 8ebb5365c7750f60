"""A router's own death under Ray Serve: its clients lose their connections, and nothing else is lost.

The oracle is the undisturbed answer of the same service.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.llm.router.deployed.running import pages_used, replicas
from tests.llm.serve.serving import SMALL, serve_cli, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME, STREAMS = "mortal", 8
ASKED = {"prompt": "The days of the week are", "max_tokens": 300, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def service(ray_cluster: str, serve_url: str) -> Iterator[str]:
    arguments = ("--name", NAME, "--route-prefix", f"/{NAME}", "apps.llm:build")
    settings = [f"{key}={value}" for key, value in (SMALL | {"routers": 2, "dtype": "float32"}).items()]
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, *arguments, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    yield f"{serve_url}/{NAME}"
    from ray import serve

    serve.delete(NAME)


def stream(url: str, seed: int, begun: threading.Event) -> str | None:
    """The text; None if the connection ends before the answer does. An end that looks whole is one."""
    text, last = "", ""
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=ASKED | {"seed": seed}, timeout=300) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                last = line or last
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    begun.set()
    except httpx.TransportError:
        return None
    assert last == "data: [DONE]", "cut, and the client cannot tell"
    return text


def test_only_its_own_clients_lose_their_connections(service: str) -> None:
    expected = [stream(service, seed, threading.Event()) for seed in range(STREAMS)]
    assert None not in expected
    before = replicas(NAME, "LLMRouter")
    engines = replicas(NAME, "LLMEngine")
    assert len(before) == 2
    texts, begun = dict[int, str | None](), [threading.Event() for _ in range(STREAMS)]

    def read(seed: int) -> None:
        texts[seed] = stream(service, seed, begun[seed])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(STREAMS)]
    for thread in threads:
        thread.start()
    assert all(event.wait(120) for event in begun)
    os.kill(next(iter(before.values())), signal.SIGKILL)
    for thread in threads:
        thread.join()
    lost = [seed for seed in range(STREAMS) if texts[seed] is None]
    assert 0 < len(lost) < STREAMS, "of two routers, each had some"
    assert all(texts[seed] == expected[seed] for seed in range(STREAMS) if seed not in lost)
    assert [stream(service, seed, threading.Event()) for seed in lost] == [expected[seed] for seed in lost]
    wait_until(lambda: len(replicas(NAME, "LLMRouter")) == 2, 300)
    assert replicas(NAME, "LLMEngine") == engines, "engines go on"
    wait_until(lambda: pages_used(service) == 0, 60)
