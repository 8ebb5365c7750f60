"""Matrix products on a CPU, called from XLA programs.

XLA's own take two to four times as long with few rows, and compute padding too. With hundreds of rows they are equal.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from apps.llm.engine.cpu.ffi import (
    FRAME_ARGS,
    FRAME_RESULTS,
    FRAME_WORDS,
    HANDLER,
    HELPER,
    add_handler,
    add_helper,
    answers_metadata,
    array2,
    claim,
    compile_once,
    finish,
    finished_unit,
    frame_of,
    helper_of,
    release,
    share,
    usable,
    vector,
    words,
)
from apps.llm.engine.cpu.kernel_cache import callback, kernel
from apps.llm.engine.cpu.product_kernel import product_unit, units
from apps.llm.engine.cpu.vectors import LINE, has

KINDS = {
    "pairs": (np.uint16(0), np.uint16(0)),
    "bf16": (np.float32(0), np.uint16(0)),
    "f32": (np.float32(0), np.float32(0)),
    "int8": (np.float32(0), np.int8(0)),
}
"""Values of the types of x and of the weight; `pairs` are AVX-512's products of bfloat16."""
FEW_ROWS, FEW_ROWS_OF_INT8 = 8, 64
"""Rows above which XLA is faster; `_most_rows` says where."""


def takes(x: jax.Array, w: jax.Array) -> bool:
    """Whether `product` can compute this product, and XLA is not faster."""
    kind = _kind(x.dtype, w.dtype)
    if kind is None or w.shape[1] * w.dtype.itemsize % LINE or not usable():
        return False
    most = _most_rows(kind)
    return most is None or len(x) <= most


def always_takes(x: jnp.dtype, w: jnp.dtype) -> bool:
    """Whether `takes` is true of these types for any number of rows, where the weight's rows are whole cache lines."""
    kind = _kind(x, w)
    return kind is not None and usable() and _most_rows(kind) is None


def _most_rows(kind: str) -> int | None:
    if kind == "int8" and has("avx512f"):
        return FEW_ROWS_OF_INT8
    if kind == "pairs" and has("amx-bf16"):  # XLA uses it
        return FEW_ROWS
    return None if has("avx512f") else FEW_ROWS


def product(x: jax.Array, w: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
    """`[tokens, in]` times `[out, in]` -> `[tokens, out]` float32, for what `takes` says.

    Args:
        num_rows: `[1]`, the rows to compute; the others are 0. Default: all.
    """
    kind = _kind(x.dtype, w.dtype)
    assert kind is not None
    _register(kind)
    call = jax.ffi.ffi_call(f"podslice_product_{kind}", jax.ShapeDtypeStruct((len(x), len(w)), jnp.float32))
    x = x if kind == "pairs" else x.astype(jnp.float32)
    if num_rows is None:
        return call(x, w, jnp.full(1, len(x), jnp.int32))
    # The kernel leaves the other rows as memory has them. XLA computes this with whatever reads the product.
    return jnp.where((jnp.arange(len(x)) < num_rows)[:, None], call(x, w, num_rows), 0.0)


def _kind(x: jnp.dtype, w: jnp.dtype) -> str | None:
    if w == jnp.bfloat16:
        return "pairs" if x == jnp.bfloat16 and has("avx512bf16") else "bf16"
    return {jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.int8): "int8"}.get(w)


@kernel()
def _work(state, like_x, like_w):
    """Claim and compute units of a call until none are left."""
    unit = claim(state)
    if unit < 0:
        return
    frame = frame_of(state)
    x, w = array2(frame, FRAME_ARGS, 0, like_x), array2(frame, FRAME_ARGS, 1, like_w)
    out = array2(frame, FRAME_RESULTS, 0, np.float32(0))
    num_rows = vector(frame, 2, np.int32(0))[0]
    while unit >= 0:
        product_unit(x, w, out, num_rows, unit)
        finished_unit(state)
        unit = claim(state)


@kernel()
def _on_product(address, like_x, like_w):
    frame = words(address, FRAME_WORDS)
    if answers_metadata(frame):
        return 0
    x, w = array2(frame, FRAME_ARGS, 0, like_x), array2(frame, FRAME_ARGS, 1, like_w)
    total = units(vector(frame, 2, np.int32(0))[0], x, w)
    state = share(address, total, helper_of("product", like_x, like_w))
    _work(state, like_x, like_w)
    finish(state)
    return 0


@kernel()
def _on_help(state, like_x, like_w):
    _work(state, like_x, like_w)
    release(state)


def _register(kind: str) -> None:
    compile_once(f"products, {kind}", lambda: _compile(kind))


def _compile(kind: str) -> None:
    like_x, like_w = KINDS[kind]

    @callback(HELPER)
    def helper(state):
        _on_help(state, like_x, like_w)

    add_helper("product", like_x, like_w, helper)

    @callback(HANDLER)
    def multiply(address):
        return _on_product(address, like_x, like_w)

    add_handler(f"podslice_product_{kind}", multiply)


TARGETS = {f"podslice_product_{kind}": partial(_register, kind) for kind in KINDS}
"""What registers each custom call's kernels."""
