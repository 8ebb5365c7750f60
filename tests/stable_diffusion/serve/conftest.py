"""A tiny random model: in this process for all that is about HTTP alone, and once behind Serve."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.stable_diffusion.serve.picture_serving import MODEL, LocalServer, local_server


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.stable_diffusion.engine import tiny_pictures

    return tiny_pictures.save("sd1", tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="session")
def studio(checkpoint: Path) -> Iterator[LocalServer]:
    """The real engine and a real, if tiny, model behind plain HTTP: 16 x 16 and 24 x 16 pixels."""
    from apps.stable_diffusion.engine.backends.choice import open_backend

    sizes = ((16, 16), (24, 16))
    backend = open_backend(str(checkpoint), sizes=sizes, backend="torch", max_batch_size=4, dtype="float32")
    with local_server(backend, model=str(checkpoint), num_inference_steps=4) as server:
        yield server


@pytest.fixture
def client(studio: LocalServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{studio.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
