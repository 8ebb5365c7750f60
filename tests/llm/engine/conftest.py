"""What only the engine's own tests need."""

from functools import partial

import pytest
from jax.experimental import pallas as pl

from apps.arrays.program_cache import use_compile_cache


@pytest.fixture(scope="session", autouse=True)
def _programs_are_kept(compile_cache: str) -> None:
    """Those of kernels and models by themselves too; an engine asks for it itself."""
    use_compile_cache(compile_cache)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pallas kernels run on the CPU. (`force_tpu_interpret_mode` cannot reshape a reference, as this kernel does.)"""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    # jax 0.10: the interpreter asks a literal index for its shape.
    monkeypatch.setattr("jax._src.literals.TypedInt.shape", (), raising=False)
