"""The flash attention kernel, interpreted, against plain attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from apps.stable_diffusion.engine.model.attention import attend


@pytest.mark.parametrize(("positions", "heads", "head_dim"), [(1024, 2, 40), (1152, 1, 64), (1024, 1, 160)])
def test_flash_is_as_plain(positions: int, heads: int, head_dim: int) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, positions, heads * head_dim), jnp.float32) for key in keys)
    plain = attend(q, k, v, heads, "xla")
    with pltpu.force_tpu_interpret_mode():
        flash = attend(q, k, v, heads, "flash")
    assert "pallas" in str(jax.make_jaxpr(lambda *qkv: attend(*qkv, heads, "flash"))(q, k, v))
    np.testing.assert_allclose(flash, plain, atol=1e-5)


@pytest.mark.parametrize(("queries", "positions", "causal"), [(1024, 77, False), (256, 256, False), (1024, 1024, True)])
def test_short_cross_and_causal_attention_is_left_to_xla(queries: int, positions: int, causal: bool) -> None:
    q, k = jnp.zeros((1, queries, 64)), jnp.zeros((1, positions, 64))
    assert "pallas" not in str(jax.make_jaxpr(lambda q, k: attend(q, k, k, 2, "flash", causal))(q, k))
