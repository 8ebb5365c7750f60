"""Tiny checkpoints and engines, made once a session; compiled programs are shared through one temporary folder."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported: the tests are the same on a machine with a TPU
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jax.experimental import pallas as pl

from apps.llm.text import Engine, EngineConfig
from tests.llm.engine import tiny_models


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compile-cache"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a trained byte-level tokenizer: all that `Engine.load` needs."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.save(tiny_models.make("llama3"), folder)
    tiny_models.save_tokenizer(folder)
    return folder


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pallas kernels run on the CPU. (`force_tpu_interpret_mode` cannot reshape a reference, as this kernel does.)"""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    # jax 0.10: the interpreter asks a literal index for its shape.
    monkeypatch.setattr("jax._src.literals.TypedInt.shape", (), raising=False)


@pytest.fixture(scope="session")
def load(llama: Path, compile_cache: str) -> Iterator[Callable[..., Engine]]:
    """Engines by their config, each loaded once a session and shut down at its end."""
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
