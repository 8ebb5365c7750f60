"""What diffusion transformers have in common: tokens with places, by which queries and keys are turned."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PATCH = 2
"""Latents of a patch's side."""


class PlacedTokens(NamedTuple):
    """Tokens [n, positions, width], with what attention needs to know of them."""

    x: jax.Array
    cos: jax.Array  # [n, positions, 1, head_dim], each twice: of both numbers of a pair
    sin: jax.Array
    seen: jax.Array  # [n, positions] bool


def placed(
    x: jax.Array, coordinates: jax.Array, axes: Sequence[int], theta: float, seen: jax.Array | None = None
) -> PlacedTokens:
    """Tokens at their places.

    Args:
        coordinates: [n, positions, axes].
        axes: dimensions of a head that turn with each coordinate.
        seen: [n, 1], how many of the positions count, the first ones; None: all.
    """
    each = []
    for axis, dims in enumerate(axes):
        frequencies = np.asarray(theta ** -(np.arange(0, dims, 2) / dims), np.float32)
        each.append(coordinates[..., axis, None].astype(jnp.float32) * frequencies)
    angles = jnp.concatenate(each, axis=-1)[:, :, None].repeat(2, axis=-1)
    count = jnp.full((len(x), 1), x.shape[1]) if seen is None else seen
    return PlacedTokens(x, jnp.cos(angles), jnp.sin(angles), jnp.arange(x.shape[1])[None] < count)


def joined(*parts: PlacedTokens) -> PlacedTokens:
    """One sequence of several."""
    return PlacedTokens(*(jnp.concatenate(each, axis=1) for each in zip(*parts)))


def turned(heads: jax.Array, tokens: PlacedTokens) -> jax.Array:
    """Pairs of neighbouring numbers of each head turned by the token's place: [n, positions, heads, head_dim], float32.

    A neighbour is fetched by turning the whole axis: to take every second number would cross a TPU's lanes.
    """
    heads = heads.astype(jnp.float32)
    even = jnp.arange(heads.shape[-1]) % 2 == 0
    other = jnp.where(even, -jnp.roll(heads, -1, axis=-1), jnp.roll(heads, 1, axis=-1))
    return heads * tokens.cos + other * tokens.sin


def centred(x: jax.Array, eps: float) -> jax.Array:
    """LayerNorm without weights."""
    h = x.astype(jnp.float32)
    mean = h.mean(-1, keepdims=True)
    h = h - mean
    return (h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + eps)).astype(x.dtype)
