"""The attention kernel, interpreted, against plain attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from apps.plan import topology
from apps.stable_diffusion.engine.model import attention
from apps.stable_diffusion.engine.model.attention import attend, head_lanes, pad_heads
from ray_configs.tpu import TpuSlice


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LONG", 256)
    monkeypatch.setattr(attention, "QUERIES", 128)


def random_qkv(positions: int, heads: int, head_dim: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (1, positions, heads * head_dim), jnp.float32) for key in keys]


@pytest.mark.parametrize(
    ("heads", "head_dim", "keys"),
    [
        pytest.param(2, 40, 128, id="two heads to a tile"),
        pytest.param(1, 160, 128, id="two tiles to a head"),
        pytest.param(3, 40, 4096, id="odd", marks=pytest.mark.slow),
        pytest.param(4, 64, 4096, id="one block of keys", marks=pytest.mark.slow),
    ],
)
def test_the_kernel_is_as_plain(heads: int, head_dim: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "KEYS", keys)
    qkv = random_qkv(256, heads, head_dim)
    with pltpu.force_tpu_interpret_mode():
        kernel = attend(*qkv, heads, "flash")
    assert "pallas" in str(jax.make_jaxpr(lambda *qkv: attend(*qkv, heads, "flash"))(*qkv))
    np.testing.assert_allclose(kernel, attend(*qkv, heads, "xla"), atol=1e-5)


@pytest.mark.parametrize("heads", [2, 3], ids=["two heads to a tile", "odd"])
@pytest.mark.parametrize("seen", [256, 200, 100, 1])
def test_keys_that_are_padding(heads: int, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were not there; in the second block of keys there may be none but them."""
    monkeypatch.setattr(attention, "KEYS", 128)
    q, k, v = random_qkv(256, heads, 40)
    expected = attend(q, k[:, :seen], v[:, :seen], heads, "xla")
    there = jnp.arange(256)[None] < seen
    with pltpu.force_tpu_interpret_mode():
        kernel = attend(q, k, v, heads, "flash", seen=there)
    np.testing.assert_allclose(kernel, expected, atol=1e-5)
    np.testing.assert_allclose(attend(q, k, v, heads, "xla", seen=there), expected, atol=1e-5)


def test_heads_that_zeros_fill_up() -> None:
    qkv = random_qkv(256, 2, 40)
    lanes = head_lanes(2, 40, 256, 256, "flash")
    assert lanes == 64
    with pltpu.force_tpu_interpret_mode():
        padded = attend(*(pad_heads(x, 2, lanes) for x in qkv), 2, "flash", head_dim=40)
    np.testing.assert_allclose(padded, pad_heads(attend(*qkv, 2, "xla"), 2, lanes), atol=1e-5)


@pytest.mark.parametrize(("queries", "positions", "causal"), [(256, 77, False), (128, 128, False), (256, 256, True)])
def test_short_cross_and_causal_attention_is_left_to_xla(queries: int, positions: int, causal: bool) -> None:
    q, k = jnp.zeros((1, queries, 64)), jnp.zeros((1, positions, 64))
    assert "pallas" not in str(jax.make_jaxpr(lambda q, k: attend(q, k, k, 2, "flash", causal))(q, k))


@pytest.mark.tpu_compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("slice", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_its_blocks_fit_into_vmem(slice: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    monkeypatch.undo()  # the blocks' own sizes
    generation, shape = slice.split(":")
    device = topology.devices(TpuSlice(generation=generation, topology=shape))[0]
    where = jax.sharding.SingleDeviceSharding(device)
    for heads, head_dim, positions in ((8, 40, 4096), (5, 64, 9216), (8, 80, 1024), (1, 512, 16384)):
        x = jax.ShapeDtypeStruct((1, positions, heads * head_dim), jnp.dtype(dtype), sharding=where)
        run = jax.jit(partial(attend, heads=heads, implementation="flash"), out_shardings=where)
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):  # as the programs
            assert "tpu_custom_call" in run.lower(x, x, x).compile().as_text()
