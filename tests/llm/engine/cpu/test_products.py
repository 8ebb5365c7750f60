"""A CPU's own matrix products: right for every shape, and of each row alone."""

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.arrays import quantization
from apps.llm.engine.cpu import product_kernel, products
from apps.llm.engine.model.products import product
from tests.llm.engine import tiny_models
from tests.processor import HAS_AVX512

MESH = Mesh(np.array(jax.devices("cpu")[:1]), ("tensor",))

xla = jax.jit(quantization.product)


@jax.jit
def own(x: jax.Array, w: quantization.Weight, bias: jax.Array | None = None, live: jax.Array | None = None):
    return quantization.product(x, w, bias, partial(products.product, num_rows=live))


KINDS = {"bfloat16": (jnp.bfloat16, False), "float32": (jnp.float32, False), "int8": (jnp.bfloat16, True)}
KIND = pytest.mark.parametrize("kind", KINDS)


def drawn(kind: str, rows: int, out: int, width: int):
    dtype, int8 = KINDS[kind]
    random = np.random.default_rng(rows * out + width)
    x, w = (jnp.asarray(random.standard_normal(shape), dtype) for shape in ((rows, width), (out, width)))
    return x, jax.jit(quantization.quantize)(w) if int8 else w


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["float32", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bfloat16", "int8"))]
)
def test_every_tile_gives_what_xla_gives(kind: str) -> None:
    """Rows and columns that leave a rest in each of the tiles, and more than one unit takes of either."""
    shapes = [*itertools.product((1, 2, 3, 5, 6, 7, 8, 13), (1, 4, 7), (64, 192)), (101, 1030, 256), (13, 50, 4096)]
    for rows, out, width in shapes:
        x, w = drawn(kind, rows, out, width)
        want = np.asarray(xla(x, w))
        np.testing.assert_allclose(own(x, w), want, rtol=1e-5, atol=2e-6 * np.abs(want).max(), err_msg=f"{rows} {out}")


@KIND
def test_a_row_does_not_depend_on_others_or_on_how_many_there_are(kind: str) -> None:
    x, w = drawn(kind, 101, 70, 256)
    alone = np.concatenate([own(x[row : row + 1], w) for row in range(101)])
    for rows in (2, 3, 4, 6, 8, 32, 101):
        np.testing.assert_array_equal(own(x[:rows], w), alone[:rows])


def test_only_live_rows_are_computed() -> None:
    x, w = drawn("float32", 40, 70, 256)
    bias = jnp.arange(70, dtype=jnp.float32)
    for live in (0, 1, 7, 40):
        marked = x.at[live:].set(jnp.nan)
        found = own(marked, w, bias, jnp.array([live]))
        np.testing.assert_array_equal(found[:live], own(x, w, bias)[:live])
        np.testing.assert_array_equal(found[live:], jnp.broadcast_to(bias, (40 - live, 70)))


def test_units_cover_a_product_once() -> None:
    for rows, out, width in ((1, 5, 64), (97, 300, 512), (500, 33, 4096), (6, 3, 1 << 17)):
        x, w = np.ones((rows, width), np.float32), np.ones((out, width), np.int8)
        found = np.zeros((rows, out), np.float32)
        for unit in range(product_kernel.units(rows, x, w)):
            part = np.zeros_like(found)
            product_kernel.product_unit(x, w, part, rows, unit)
            found += part
        np.testing.assert_array_equal(found, width)


def test_rows_that_are_no_whole_cache_lines_are_left_to_xla() -> None:
    x, w = drawn("bfloat16", 3, 5, 50)
    assert not products.takes(x, w)
    np.testing.assert_array_equal(product(x, w, MESH), xla(x, w))


FEATURES = {
    "none": ((), {"bfloat16": 8, "float32": 8, "int8": 8}),
    "AVX-512": (("avx512f",), {"bfloat16": None, "float32": None, "int8": 64}),
    "and its bfloat16": (("avx512f", "avx512bf16"), {"bfloat16": None, "float32": None, "int8": 64}),
    "and AMX": (("avx512f", "avx512bf16", "amx-bf16"), {"bfloat16": 8, "float32": None, "int8": 64}),
}


@pytest.mark.parametrize("cpu", FEATURES)
def test_rows_that_are_left_to_xla(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, most = FEATURES[cpu]
    monkeypatch.setattr(products, "has", features.__contains__)
    for kind, rows in most.items():
        (x, weight), w = drawn(kind, 65, 8, 64), jnp.dtype(jnp.int8 if KINDS[kind][1] else KINDS[kind][0])
        assert products.always_takes(x.dtype, w) == (rows is None)
        assert products.takes(x[: rows or 65], quantization.values(weight))
        assert rows is None or not products.takes(x[: rows + 1], quantization.values(weight))


OF_ANOTHER_CPU = """
import jax.numpy as jnp, numpy as np
from apps.llm.engine.cpu import products
x, w = (jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.bfloat16) for shape in ((9, 256), (70, 256)))
print(products._kind(x.dtype, w.dtype), products.takes(x[:8], w), products.takes(x, w))
want = x.astype(jnp.float32) @ w.astype(jnp.float32).T
np.testing.assert_allclose(products.product(x, w), want, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "found"),
    [("+avx2,+fma,+avx512f,-avx512bf16", "bf16 True True"), ("+avx2,+fma,-avx512f,-avx512bf16", "bf16 True False")],
    ids=["without products of bfloat16", "without AVX-512"],
)
def test_another_cpu(features: str, found: str, tmp_path: Path) -> None:
    """That Numba is told to compile for: it must not be given an instruction that it lacks."""
    if "+avx512f" in features and not HAS_AVX512:
        pytest.skip("the CPU here has no AVX-512, and cannot run what is compiled for it")
    environment = tiny_models.environment(NUMBA_CPU_FEATURES=features, NUMBA_CACHE_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", OF_ANOTHER_CPU], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{found}\n", done.stderr[-3000:]
    assert done.returncode == 0, done.stderr[-3000:]


ROUNDS_OF_WORK = 300


def test_two_products_at_once_share_the_threads() -> None:
    """Each waits for its own units only, whoever computes them; run often, so that helpers come late."""
    x, w = drawn("float32", 5, 700, 512)
    want = np.asarray(own(x, w))
    both = jax.jit(lambda x, w: (product(x, w, MESH), product(x + 0, w, MESH)))
    for _ in range(ROUNDS_OF_WORK):
        for found in both(x, w):
            np.testing.assert_array_equal(found, want)
