"""Engines of tiny models that see, each loaded once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from apps.llm.text import Engine
from tests.llm.images import seeing_models

SEES = {"image_tokens": 160, "max_image_tokens": 64, "max_model_len": 320, "pages": 96}
LARGER = {"max_image_tokens": 70, "image_tokens": 210}
OF_FAMILY = {"gemma3": {"max_step_tokens": 24}, "gemma4": {"max_step_tokens": 80} | LARGER, "gemma4_e": LARGER}
"""An image in one step, beside seven other sequences, where it is seen both ways."""


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
def load_seeing(seeing: Callable[[str], Path], load: Callable[..., Engine]) -> Callable[..., Engine]:
    return lambda family="qwen3_5", **settings: load(
        **(SEES | OF_FAMILY.get(family, {}) | {"model": str(seeing(family))} | settings)
    )
