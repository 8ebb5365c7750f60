"""Tests of jobs use the tiny random models of the engine's tests."""

import socket
from pathlib import Path

import pytest

from tests.llm.engine import tiny_models


@pytest.fixture
def free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer; four layers, so that a preparation has a middle."""
    return _made(tmp_path_factory.mktemp("models") / "llama", "llama3", num_hidden_layers=4)


@pytest.fixture(scope="session")
def tiny_gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One key/value head, which two devices must share; its table is the head, too."""
    return _made(tmp_path_factory.mktemp("models") / "gemma", "gemma")


@pytest.fixture(scope="session")
def tiny_gemma4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of two kinds, and all experts in one tensor."""
    return _made(tmp_path_factory.mktemp("models") / "gemma4", "gemma4_moe")


def _made(folder: Path, family: str, **changes: int) -> Path:
    tiny_models.save(tiny_models.make(family, **changes), folder)
    tiny_models.save_tokenizer(folder)
    return folder
