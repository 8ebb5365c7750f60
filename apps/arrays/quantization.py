"""int8 weights with one scale per output channel, as a type that `product` accepts."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

Leaf = TypeVar("Leaf")
"""An array, or in its place its shape and type, or how it is split over the mesh."""


class QuantArray(NamedTuple, Generic[Leaf]):
    """A weight `[out, in]` as int8 values and the float32 scale of each output channel, `[out]`."""

    values: Leaf
    scale: Leaf


Weight = jax.Array | QuantArray[jax.Array]
BLOCK = 1 << 18
"""Values that `quantize_rows` takes at once: they stay in a core's cache."""
LEAST_MAXIMUM = 1e-12
"""Stands for the maximum of a row of zeros."""
LANES = 128
"""Columns of a tile of a TPU's memory."""


def quantize(weight: jax.Array) -> QuantArray[jax.Array]:
    """Quantize `[out, in]` to 255 levels spanning each output channel, inside a program."""
    wide = weight.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=1), LEAST_MAXIMUM) / 127
    return QuantArray(jnp.round(wide / scale[:, None]).astype(jnp.int8), scale)


def quantize_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `quantize`, on the host: int8 values, `[out, in]`, and the float32 scale of each row.

    The arithmetic is XLA's on a CPU, which multiplies by reciprocals. NumPy lets other threads run meanwhile.
    """
    values, scale = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    step = max(1, BLOCK // rows.shape[1])
    for first in range(0, len(rows), step):
        block = slice(first, first + step)
        wide = _float32(rows[block])
        most = np.maximum(np.maximum(wide.max(axis=1), -wide.min(axis=1)), np.float32(LEAST_MAXIMUM))
        scale[block] = most * np.float32(1 / 127)
        wide *= (np.float32(1) / scale[block])[:, None]
        values[block] = np.rint(wide, out=wide)
    return values, scale


def _float32(rows: np.ndarray) -> np.ndarray:
    """A copy in float32. That of bfloat16 is made from its bits: ml_dtypes converts one value after another."""
    if rows.dtype != ml_dtypes.bfloat16:
        return rows.astype(np.float32)
    return (rows.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def multiplied(x: jax.Array, values: jax.Array) -> jax.Array:
    """`[tokens, in]` times `[out, in]` -> `[tokens, out]` float32.

    Weights keep Hugging Face's `[out, in]` order, so loading transposes nothing. XLA:CPU uses the matrix unit (AMX)
    only for plain two-dimensional bf16 x bf16 -> float32; it would copy a weight of more axes in every step.
    """
    contracted = ((1,), (1,)), ((), ())
    return jax.lax.dot_general(x, values.astype(x.dtype), contracted, preferred_element_type=jnp.float32)


def product(
    x: jax.Array,
    weight: Weight,
    bias: jax.Array | None = None,
    multiply: Callable[[jax.Array, jax.Array], jax.Array] = multiplied,
) -> jax.Array:
    """`[tokens, in]` times `[out, in]`, plus bias -> `[tokens, out]` float32.

    Args:
        bias: float32; see `Param.wide`.
        multiply: computes the product with the weight's values.
    """
    y = multiply(x, values(weight))
    if isinstance(weight, QuantArray):
        y = y * weight.scale
    return y if bias is None else y + bias


def values(weight: Weight) -> jax.Array:
    """The weight's values, without the scale."""
    return weight.values if isinstance(weight, QuantArray) else weight


def whole_lanes(size: int) -> int:
    """The columns of an expert's matrix with so many inputs.

    XLA turns a matrix that does not fill tiles of a TPU's memory around, and would copy it for a kernel.
    """
    return size if size <= LANES else -(-size // LANES) * LANES


def filled(x: jax.Array, weight: Weight) -> jax.Array:
    """`[rows, inputs]` with zeros for the columns that the weight is filled up with."""
    return jnp.pad(x, ((0, 0), (0, values(weight).shape[1] - x.shape[1])))
