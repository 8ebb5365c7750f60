"""Runs of `python -m kuberay local` in processes of their own, and what they leave behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from kuberay.local.container import descendants
from kuberay.local.ports import is_free

REPOSITORY = Path(__file__).parents[3]
START_S = 600


def serving_port() -> int:
    """Below the ports that the runs choose for themselves."""
    start = 8100 + os.getpid() % 800
    return next(port for port in range(start, start + 1000) if is_free(port))


class LocalRun:
    """`python -m kuberay local CONFIG OPTIONS --port PORT`, as in a terminal."""

    def __init__(self, config: str, *options: str, port: int):
        self.config, self.port, self.url = config, port, f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "kuberay", "local", config, "--port", str(port), *options]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> str:
        """The first text that matches; fails with the whole output if it ends before."""
        return wait_until(
            lambda: re.search(pattern, self.output), timeout_s, lambda: self.process.poll() is not None, self
        )[0]

    def processes(self) -> set[int]:
        """Everything that it has started, itself included."""
        return {self.process.pid, *descendants(self.process.pid)}

    def ask(self, prompt: str = "Hello", **fields: object) -> httpx.Response:
        return self.post("/generate", {"prompt": prompt, "max_tokens": 4, **fields})

    def answers(self) -> bool:
        """Whether it does now; a request that waits for a replica too long on a busy machine is a no."""
        with contextlib.suppress(httpx.TransportError):
            return self.ask().status_code == 200
        return False

    def post(self, path: str, body: dict[str, object]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60)

    def interrupt(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        status = self.process.wait(240)
        self._reader.join(10)
        return status

    def leaves_nothing(self, processes: set[int]) -> None:
        wait_until(lambda: not [pid for pid in processes if alive(pid)], 60)
        assert is_free(self.port)
        assert not list(Path("/tmp").glob(f"podslice-{os.getuid()}/{self.port}*"))


def alive(pid: int) -> bool:
    """Whether it runs: what nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(
    condition: Callable[[], object],
    timeout_s: float,
    hopeless: Callable[[], bool] = lambda: False,
    run: LocalRun | None = None,
) -> object:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        over = time.monotonic() > deadline or (hopeless() and not condition())
        assert not over, run.output if run else "waited in vain"
        time.sleep(0.2)
    return value
