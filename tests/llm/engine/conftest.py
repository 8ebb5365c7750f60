"""What only the engine's own tests need."""

from functools import partial

import pytest
from jax.experimental import pallas as pl


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pallas kernels run on the CPU. (`force_tpu_interpret_mode` cannot reshape a reference, as this kernel does.)"""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    # jax 0.10: the interpreter asks a literal index for its shape.
    monkeypatch.setattr("jax._src.literals.TypedInt.shape", (), raising=False)
