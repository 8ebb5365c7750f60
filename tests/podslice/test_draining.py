"""Ctrl-C and SIGTERM of a real server with answers on their way. The oracle is the same answer, undisturbed.

The model is slow_server.py's: ten pieces a second, without JAX.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.podslice.slow_server import pieces
from tests.ports import free_port, serve_ports

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
LONG = 200
"""Pieces of an answer that takes 20 s."""

SERVE_RUN = """
import sys
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
prefer_direct_ingress()
import ray
from ray.serve.scripts import cli
from apps.serving import private_ray
ray.init(namespace="serve", include_dashboard=False, log_to_driver=False)
private_ray.start_serve(http_options={"port": int(sys.argv[1])})
cli(["run", "tests.podslice.slow_server:build"])
"""
"""`serve run`, which has no option for its port."""


class Asked(threading.Thread):
    """One request in a thread of its own; `done` once the answer is there."""

    def __init__(self, url: str, pause_s: float = 0):
        super().__init__(daemon=True)
        self.url, self._pause_s = url, pause_s
        self.begun, self.body = threading.Event(), b""
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("GET", self.url, timeout=300) as answer:
                for piece in answer.iter_raw(1024):
                    self.body += piece
                    self.begun.set()
                    time.sleep(self._pause_s)
        except Exception as error:
            self.failure = error
        self.begun.set()


ATTEMPTS = 4
SLOW_RAY = "timed out during startup"
"""What Ray says where it takes longer than half a minute, as on a busy machine."""


class Running:
    """A server that is ready."""

    def __init__(self, *fields: str):
        for _ in range(ATTEMPTS):
            self._start(*fields)
            if "answers" in self.process.stdout.readline():
                break
            assert SLOW_RAY in (said := self.process.communicate()[1]), said
        else:
            pytest.fail(f"Ray {SLOW_RAY} {ATTEMPTS} times")
        self.processes = psutil.Process(self.process.pid).children(recursive=True)
        assert len(self.processes) > 5

    def _start(self, *fields: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.podslice.slow_server", str(self.port), *fields],
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def open(self, path: str) -> socket.socket:
        """A connection on which this was asked and nothing is read."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return connection

    def ended(self) -> tuple[int, str]:
        """Exit status and standard error; nothing is left of it."""
        _, err = self.process.communicate(timeout=120)
        assert not [process for process in self.processes if process.is_running()]
        return self.process.returncode, err


@pytest.fixture
def server() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*fields: str) -> Running:
        started.append(Running(*fields))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_every_open_answer_ends_as_if_undisturbed(server: Callable[..., Running], number: signal.Signals) -> None:
    running = server()
    streams = [Asked(f"{running.url}/stream/{LONG}") for _ in range(5)]
    for stream in streams:
        assert stream.begun.wait(240)
    whole = Asked(f"{running.url}/whole/{LONG}")  # nothing of it is out before its end
    # Read so slowly that its end is still in the proxy when the replica is done with it.
    tail = Asked(f"{running.url}/stream/10?size=10000", pause_s=0.1)
    idle = running.open("/v1/models")
    assert idle.recv(100).startswith(b"HTTP/1.1 200"), "a connection that is kept alive holds nobody up"
    time.sleep(1)
    running.process.send_signal(number)
    refused = httpx.get(f"{running.url}/stream/1", timeout=60)
    while refused.status_code == 200:  # the signal is on its way
        refused = httpx.get(f"{running.url}/stream/1", timeout=60)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5"), refused.text
    assert refused.json()["error"]["code"] == "server_stopping"
    assert all(stream.is_alive() for stream in streams), "in the middle of their answers"
    status, err = running.ended()
    assert status == 0 and "stopping" in err
    for asked in (*streams, whole, tail):
        asked.join(60)
    assert [asked.failure for asked in (*streams, whole, tail)] == [None] * 7
    assert {asked.body for asked in (*streams, whole)} == {pieces(LONG)}
    assert tail.body == pieces(10, 10000)


def test_a_client_that_never_reads_is_waited_for_as_long_as_the_config_says(server: Callable[..., Running]) -> None:
    running = server("drain_timeout_s=3")
    deaf = running.open("/stream/100000?size=10000")
    assert deaf.recv(100).startswith(b"HTTP/1.1 200")
    time.sleep(1)
    running.process.send_signal(signal.SIGTERM)
    assert running.ended()[0] == 0


def test_a_second_ctrl_c_cuts_what_is_open(server: Callable[..., Running]) -> None:
    running = server()
    stream = Asked(f"{running.url}/stream/3000")
    assert stream.begun.wait(240)
    running.process.send_signal(signal.SIGINT)
    assert "Ctrl-C again" in _line(running, "stopping")
    running.process.send_signal(signal.SIGINT)
    assert running.ended()[0] == 0
    stream.join(60)
    assert stream.failure is not None and pieces(3000).startswith(stream.body)


def test_the_death_of_rays_gcs_ends_it_with_a_reason(server: Callable[..., Running]) -> None:
    running = server()
    (gcs,) = [process for process in running.processes if process.name() == "gcs_server"]
    gcs.kill()
    status, err = running.ended()
    assert status == 1 and "Ray has lost gcs_server (status -9)" in err


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_rays_own_command_lets_answers_finish(tmp_path: Path, number: signal.Signals) -> None:
    """`serve run`, whose whole process group a terminal's Ctrl-C reaches."""
    for _ in range(ATTEMPTS):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        run = subprocess.Popen(
            [sys.executable, "-c", SERVE_RUN, str(port)],
            cwd=ROOT,
            env=os.environ | serve_ports() | {"RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=(said := tmp_path / "said").open("w"),
            start_new_session=True,
        )
        while run.poll() is None and not _is_up(url):
            time.sleep(0.5)
        if run.poll() is None:
            break
        assert SLOW_RAY in said.read_text(), said.read_text()
    else:
        pytest.fail(f"Ray {SLOW_RAY} {ATTEMPTS} times")
    try:
        processes = psutil.Process(run.pid).children(recursive=True)
        streams = [Asked(f"{url}/stream/{LONG}") for _ in range(3)]
        for stream in streams:
            assert stream.begun.wait(240)
        time.sleep(1)
        os.killpg(run.pid, number) if number == signal.SIGINT else run.send_signal(number)
        run.wait(120)
        for stream in streams:
            stream.join(60)
        assert [(stream.failure, stream.body == pieces(LONG)) for stream in streams] == [(None, True)] * 3
        assert not [process for process in processes if process.is_running()]
    finally:
        run.kill()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def _line(running: Running, begins: str) -> str:
    return next(line for line in running.process.stderr if line.startswith(begins))
