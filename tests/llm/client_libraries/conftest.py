"""A server as a person starts it, and client libraries in an environment of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.llm.client_libraries import decisive
from tests.llm.serve.serving import REPOSITORY
from tests.ports import free_port, serve_ports

ENVIRONMENT = REPOSITORY / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"
NAME = "tiny"
SIZES = {"dtype": "float32", "max_batch_size": 4, "max_step_tokens": 64, "pages": 512, "page_size": 16}


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder of the clients' programs."""
    if not (ENVIRONMENT / ".installed").exists():
        pytest.skip("the client libraries are not installed: make test-clients")
    return ENVIRONMENT / "bin"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decisive.save(tmp_path_factory.mktemp("model"))


@contextmanager
def served(**options: Any) -> Iterator[str]:
    """Where `podslice serve`, which is what `make serve` runs, serves a model with these settings."""
    port = free_port()
    command = [sys.executable, "-m", "podslice", "serve", "--port", str(port), f"model_id={NAME}"]
    alone = os.environ | {"RAY_ADDRESS": "local"} | serve_ports()
    server = subprocess.Popen(
        [*command, *(f"{name}={value}" for name, value in options.items())],
        cwd=REPOSITORY,
        env=alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert f"{NAME} answers" in server.stdout.readline(), server.communicate()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=120)


@pytest.fixture(scope="session")
def served_url(clients: Path, checkpoint: Path) -> Iterator[str]:
    """Where the random model is served."""
    with served(model=checkpoint, max_model_len=2048, **SIZES) as url:
        yield url


@pytest.fixture
def run(clients: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs one of the clients' programs, without the internet; returns what it printed."""

    def run(program: str, *arguments: str) -> str:
        # None of these clients asks anybody but this server: what they would look up elsewhere is switched off.
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
        done = subprocess.run(
            [str(clients / program), *arguments], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    return run


@pytest.fixture
def told(run: Callable[..., str], served_url: str) -> Callable[[str], dict[str, Any]]:
    """What a program of `programs/` says of its calls to the server."""

    def told(program: str) -> dict[str, Any]:
        return json.loads(run("python", str(PROGRAMS / program), served_url, NAME).splitlines()[-1])

    return told
