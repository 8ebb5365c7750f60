"""Runs and configs for the tests of this folder."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kuberay.local.ports import is_free
from tests.kuberay.local.local_runs import LocalRun, serving_port


@pytest.fixture
def local_run() -> Iterator[Callable[..., LocalRun]]:
    """Starts runs, and ends those that a test leaves."""
    runs: list[LocalRun] = []

    def start(config: str, *options: str, port: int | None = None) -> LocalRun:
        if port is None:
            taken = {run.port for run in runs}
            port = serving_port()
            while port in taken or not is_free(port):
                port += 1
        runs.append(LocalRun(config, *options, port=port))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.interrupt(signal.SIGTERM)


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a config with one LLM of these arguments; returns its path."""

    def write(arguments: str, name: str = "tiny", **service: str) -> str:
        more = "".join(f", {key}={value}" for key, value in service.items())
        path = tmp_path / f"{name}.py"
        path.write_text(
            "from ray_configs.cloud import *\nfrom ray_configs.llm import LLMConfig\n"
            "from ray_configs.service import Application, Service\n"
            f"service = Service(name='{name}', applications=(Application(config=LLMConfig({arguments})),){more})\n"
        )
        return str(path)

    return write
