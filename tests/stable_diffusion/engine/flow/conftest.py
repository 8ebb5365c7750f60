"""A tiny Z-Image checkpoint, and a backend that is ready over it."""

from pathlib import Path

import pytest

from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from tests.stable_diffusion.engine.flow import tiny_transformers

SIZES = ((32, 32), (40, 28), (28, 36), (16, 16))
"""The first three have 64, 70 and 63 patches: they share a program; the last has one of its own."""


@pytest.fixture(scope="session")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_transformers.save_z_image(tmp_path_factory.mktemp("z-image"))


@pytest.fixture(scope="session")
def made(z_image: Path, compile_cache: str) -> JaxBackend:
    """In float32, with guidance, three pictures at once."""
    backend = JaxBackend(z_image, sizes=SIZES, max_batch_size=3, dtype="float32", compile_cache=compile_cache)
    backend.compile()
    return backend
