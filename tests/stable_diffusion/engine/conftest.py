"""Tiny checkpoints and backends over them, made once a session; compiled programs are shared through one folder."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported: the tests are the same on a machine with a TPU
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend
from tests.stable_diffusion.engine import tiny_pictures

torch.set_num_threads(1)  # its threads wait for each other by spinning, which costs much on a busy machine


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tiny_pictures.Family], Path]:
    """The folder of a family's tiny checkpoint."""
    return cache(lambda family: tiny_pictures.save(family, tmp_path_factory.mktemp(family)))


@pytest.fixture(scope="session")
def backend(checkpoint: Callable[[tiny_pictures.Family], Path], compile_cache: str) -> Callable[..., Backend]:
    """A backend that is ready, by its name and its checkpoint's family, in float32, for 32x32; of sd1 for three."""

    @cache
    def ready(name: str, family: tiny_pictures.Family, guided: bool = True, prompt_chunks: int = 1) -> Backend:
        most = 3 if family == "sd1" else 1
        settings: dict[str, Any] = {"sizes": [(32, 32)], "max_batch_size": most, "guided": guided, "dtype": "float32"}
        settings["prompt_chunks"] = prompt_chunks
        if name == "jax":
            made = JaxBackend(checkpoint(family), compile_cache=compile_cache, **settings)
        else:
            made = TorchBackend(checkpoint(family), device="xla" if name == "torch_xla" else "cpu", **settings)
        made.compile()
        return made

    return ready
