"""Engines of tiny models that see, each loaded once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.llm.text import Engine, EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.images import seeing_models

SEES = {"image_tokens": 160, "max_image_tokens": 64, "max_model_len": 320, "pages": 96}


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints by their family."""
    folders: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in folders:
            folders[family] = seeing_models.save(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return get


@pytest.fixture(scope="session")
def load_seeing(seeing: Callable[[str], Path], compile_cache: str) -> Iterator[Callable[..., Engine]]:
    engines: dict[tuple[tuple[str, Any], ...], Engine] = {}

    def get(family: str = "qwen3_5", **settings: Any) -> Engine:
        settings = tiny_models.SMALL | SEES | {"model": str(seeing(family)), "compile_cache": compile_cache} | settings
        key = tuple(sorted(settings.items()))
        if key not in engines:
            engines[key] = Engine.load(EngineConfig(**settings))
        return engines[key]

    yield get
    for engine in engines.values():
        engine.shutdown()
