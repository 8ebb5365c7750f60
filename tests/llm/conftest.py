"""Tiny checkpoints, engines and servers, each made once a session; their compiled programs share a folder."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported: the tests are the same on a machine with a TPU
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.llm.text import EngineConfig


@pytest.fixture(scope="session")
def crowded_server() -> Iterator[Any]:
    """A `LocalServer` whose queue holds two requests."""
    from tests.llm.serve.serving import local_server

    with local_server(max_waiting=2) as server:
        yield server


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a trained byte-level tokenizer: all that `Engine.load` needs."""
    from tests.llm.engine import tiny_models

    folder = tmp_path_factory.mktemp("llama")
    tiny_models.save(tiny_models.make("llama3"), folder)
    tiny_models.save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def load(llama: Path, compile_cache: str) -> Iterator[Callable[..., Any]]:
    """Engines by their config, each loaded once a session and shut down at its end."""
    from apps.llm.text import Engine
    from tests.llm.engine import tiny_models

    engines: dict[tuple[tuple[str, Any], ...], Engine] = {}

    def get(**settings: Any) -> Engine:
        settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache} | settings
        key = tuple(sorted(settings.items()))
        if key not in engines:
            engines[key] = Engine.load(EngineConfig(**settings))
        return engines[key]

    yield get
    for engine in engines.values():
        engine.shutdown()
