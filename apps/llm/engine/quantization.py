"""int8 weights: one scale per output channel, as a type that `linear` knows."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class QuantArray(NamedTuple):
    """A weight `[out..., in...]` as int8 values and the float32 scale of each output channel, `[out...]`."""

    values: jax.Array
    scale: jax.Array


Weight = jax.Array | QuantArray


@partial(jax.jit, static_argnames="in_axes", donate_argnums=0)
def quantize(weight: jax.Array, in_axes: int) -> QuantArray:
    """Round to the nearest of 255 levels spanning each output channel's largest magnitude.

    Args:
        weight: `[out..., in...]`; its buffer is given up.
        in_axes: how many trailing axes are inputs (those that `linear` sums over).
    """
    axes = tuple(range(weight.ndim - in_axes, weight.ndim))
    wide = weight.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axes), 1e-12) / 127
    values = jnp.round(wide / jnp.expand_dims(scale, axes)).astype(jnp.int8)
    return QuantArray(values, scale)


def linear(x: jax.Array, weight: Weight, bias: jax.Array | None = None, in_axes: int = 1) -> jax.Array:
    """x times weight, summed over the last `in_axes` axes of both: `[tokens, in...] -> [tokens, out...]`.

    Sums in float32 and rounds once to x's type. Weights keep Hugging Face's `[out, in]` order: nothing is
    transposed on loading, and XLA:CPU reaches its matrix unit (AMX) only for bf16 x bf16 -> float32.
    """
    values = weight.values.astype(x.dtype) if isinstance(weight, QuantArray) else weight
    contract = tuple(range(x.ndim - in_axes, x.ndim)), tuple(range(values.ndim - in_axes, values.ndim))
    y = jax.lax.dot_general(x, values, (contract, ((), ())), preferred_element_type=jnp.float32)
    if isinstance(weight, QuantArray):
        y = y * weight.scale
    if bias is not None:
        y = y + bias.astype(jnp.float32)
    return y.astype(x.dtype)


def rows(table: Weight, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows of an embedding table: `[vocab, hidden]`, `[tokens]` -> `[tokens, hidden]`."""
    if isinstance(table, QuantArray):
        return (table.values[ids].astype(jnp.float32) * table.scale[ids, None]).astype(dtype)
    return table[ids].astype(dtype)
