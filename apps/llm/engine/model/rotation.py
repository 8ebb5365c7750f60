"""Rotary position embedding of a step's tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from apps.llm.engine.attention.spec import slots
from apps.llm.engine.execute.step import Batch


def angles(
    batch: Batch, page_size: int, frequencies: list[float], scale: float = 1.0, axes: list[int] | None = None
) -> tuple[jax.Array, jax.Array]:
    """`scale` times cosines and sines of each position times each frequency: both `[T, frequencies]` float32.

    Args:
        axes: which of a token's positions each frequency is for, where images have more than one.
    """
    position = slots(batch, page_size)[1][:, None]
    if batch.positions is not None:
        position = batch.positions[np.array(axes or [0])].T

    def turned() -> tuple[jax.Array, jax.Array]:
        angle = position.astype(jnp.float32) * np.asarray(frequencies, np.float32)
        if scale == 1:
            return jnp.cos(angle), jnp.sin(angle)
        return scale * jnp.cos(angle), scale * jnp.sin(angle)

    def none() -> tuple[jax.Array, jax.Array]:
        zeros = jnp.zeros((len(position), len(frequencies)))
        return zeros, zeros

    # The condition is only known at run time, which stops XLA from recomputing the angles for each head of each layer
    # (it fuses them into their users, even through an optimization barrier).
    return jax.lax.cond(batch.num_seqs[0] > 0, turned, none)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding on `[T, ..., head_dim]`: rotates channel i with channel i + width / 2 of the first `width`.

    The width is that of `cos` and `sin` `[T, width]`; other channels stay as they are.

    The partner channels come from a product with a signed permutation matrix, which is exact in any precision. XLA:CPU
    would copy the halves element by element, thirty times slower.
    """
    half, width = cos.shape[-1] // 2, x.shape[-1]
    swap = np.zeros((width, width), np.float32)
    swap[np.arange(half) + half, np.arange(half)] = -1
    swap[np.arange(half), np.arange(half) + half] = 1
    partner = jax.lax.dot_general(
        x.reshape(-1, width),
        jnp.asarray(swap, x.dtype),
        (((1,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    ).reshape(x.shape)
    if 2 * half < width:
        rest = (0, 0), (0, width - 2 * half)
        cos, sin = jnp.pad(cos, rest, constant_values=1), jnp.pad(sin, rest)
    cos, sin = (jnp.expand_dims(part, tuple(range(1, x.ndim - 1))) for part in (cos, sin))
    return (x.astype(jnp.float32) * cos + partner * sin).astype(x.dtype)
