"""The demo model, deployed for all tests of this folder."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from serving import MODEL, SMALL, serve_cli


@pytest.fixture(scope="session")
def llm_url(ray_cluster: str, serve_url: str) -> str:
    """Base URL of the demo model, deployed by the command line from the repository's root."""
    options = [f"{name}={value}" for name, value in SMALL.items()]
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, "--name", "llm", "apps.llm:build", *options)
    assert done.returncode == 0 and "is ready" in done.stdout + done.stderr, done.stdout + done.stderr
    return serve_url


@pytest.fixture
def client(llm_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{llm_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def stats(llm_url: str) -> Callable[[], dict[str, Any]]:
    return lambda: httpx.get(f"{llm_url}/health").json()["models"][MODEL]
