"""int8 weights with one scale per output channel, as a type that `linear` accepts."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class QuantArray(NamedTuple):
    """A weight `[out, in]` as int8 values and the float32 scale of each output channel, `[out]`."""

    values: jax.Array
    scale: jax.Array


Weight = jax.Array | QuantArray
LANES = 128
"""Columns of a tile of a TPU's memory."""


@partial(jax.jit, donate_argnums=0)
def quantize(weight: jax.Array) -> QuantArray:
    """Quantize `[out, in]` to 255 levels spanning each output channel. The weight's buffer is donated."""
    wide = weight.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=1), 1e-12) / 127
    return QuantArray(jnp.round(wide / scale[:, None]).astype(jnp.int8), scale)


def product(x: jax.Array, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
    """`[tokens, in]` times `[out, in]`, plus bias -> `[tokens, out]` float32.

    Weights keep Hugging Face's `[out, in]` order, so loading transposes nothing. XLA:CPU uses the matrix unit (AMX)
    only for plain two-dimensional bf16 x bf16 -> float32; it would copy a weight of more axes in every step.
    Biases are float32: see `Param.wide`.
    """
    y = jax.lax.dot_general(
        x, values(weight).astype(x.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    if isinstance(weight, QuantArray):
        y = y * weight.scale
    return y if bias is None else y + bias


def linear(x: jax.Array, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
    """`product`, rounded to x's type."""
    return product(x, weight, bias).astype(x.dtype)


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
