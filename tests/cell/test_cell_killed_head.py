"""The whole Ray cluster killed under a cell, again and again: the next one serves what was acknowledged."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.ports import free_port

KILLS = 5
REPOSITORY = Path(__file__).parents[2]


@contextlib.contextmanager
def cluster(state: Path, port: int) -> Iterator[Callable[[], None]]:
    """`serve run` of a cell, as a user starts it. Yields what kills all that it started."""
    config = state.parent / "cell.yaml"
    config.write_text(
        f"http_options: {{port: {port}}}\n"
        "applications:\n"
        f"- {{name: cell, route_prefix: /, import_path: 'apps.cell:build', args: {{state_uri: {state}}}}}\n"
    )
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(config)]
    with open(state.parent / "serve.log", "ab") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)

    def kill() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (*psutil.Process(process.pid).children(recursive=True), process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)

    try:
        yield kill
    finally:
        kill()
        process.wait()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_head_is_killed_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    chance = random.Random(7)
    expected: set[str] = set()
    allowed: list[set[str]] = [set()]
    for round in range(KILLS + 1):
        port = free_port()
        with cluster(tmp_path / "state", port) as kill:
            http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
            expected = _until_writable(http)
            assert expected in allowed, (round, expected, allowed)
            timer = threading.Timer(chance.uniform(0.5, 3), kill)
            timer.start()
            with contextlib.suppress(httpx.HTTPError):
                for number in range(1000):
                    body = {"model": f"/sax/test/r{round}-{number}", "model_path": "catalog.local", "replicas": 0}
                    allowed = [expected, expected | {body["model"]}]
                    assert http.post("/publish", json=body).status_code == 200
                    expected = allowed[1]
                    if chance.random() < 0.3:
                        gone = chance.choice(sorted(expected))
                        allowed = [expected, expected - {gone}]
                        assert http.post("/unpublish", json={"model": gone}).status_code == 200
                        expected = allowed[1]
            timer.join()
    assert len(expected) > KILLS


def _until_writable(http: httpx.Client) -> set[str]:
    """What is published, as soon as this cluster's cell answers: it waits for the killed one's lease to end."""
    deadline = time.monotonic() + 180
    while True:
        with contextlib.suppress(httpx.HTTPError):
            answer = http.put("/acl", json={"sax_cell": "/sax/test", "acl": "*"})
            assert "holds the lease" not in answer.text, "it waits; there is nobody else to hold it"
            if answer.status_code == 200:
                return set(http.get("/listall").json())
        assert time.monotonic() < deadline
        time.sleep(0.5)
