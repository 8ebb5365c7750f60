"""What towers have in common: patches, their attention to those of the same image, and products with split weights."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from apps.arrays.row_ranges import Rows
from apps.llm.engine.model.param import Param, Params, tensor
from apps.llm.engine.model.towers.spec import Tower

QUERIES = 512
"""Patches whose scores against all others are in memory at a time."""


class Patches(NamedTuple):
    """Patches of several images, one image after another, then padding. Within one, those of a token are together."""

    pixels: jax.Array  # [N, channels * patch * patch] uint8
    row: jax.Array  # [N] int32, in its image's grid, as is `column`
    column: jax.Array
    rows: jax.Array  # [N] of its image, as are `columns`
    columns: jax.Array
    image: jax.Array  # [N] its image's number; -1: padding


def traced_once(block: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A tower's block, traced for the first and not for each."""
    return jax.jit(block)


def numbers(patches: Patches, spec: Tower, dtype: jnp.dtype) -> jax.Array:
    """The patches' pixels as the tower's input, `[N, channels * patch * patch]`."""
    pixels = spec.pixels
    mean, std = np.array(pixels.mean, np.float32)[:, None], np.array(pixels.std, np.float32)[:, None]
    values = patches.pixels.reshape(-1, spec.channels, spec.patch**2).astype(jnp.float32)
    # Transformers multiplies by the factor in float64. This quotient is the same number, its product is not.
    return ((values / np.float32(1 / pixels.factor) - mean) / std).astype(dtype).reshape(-1, spec.bytes_a_patch)


def halves(patches: Patches, spec: Tower) -> jax.Array:
    """Angles of Qwen's rotary embedding: half of a head's pairs turn with the row, half with the column:
    `[N, head_dim]`."""
    pairs = spec.width // spec.heads // 4
    frequencies = np.array([spec.theta ** (-i / pairs) for i in range(pairs)], np.float32)
    places = [place[:, None].astype(jnp.float32) * frequencies for place in (patches.row, patches.column)]
    return jnp.concatenate(places * 2, axis=1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, image: jax.Array, scale: float | None = None) -> jax.Array:
    """Of each patch to all patches of its image: `[N, heads, head_dim]` -> `[N, heads * head_dim]`.

    Args:
        image: as `Patches` has it, or the numbers of parts of an image that attend to themselves.
        scale: multiplies q @ k; None: one over the root of head_dim.
    """
    heads, head_dim = q.shape[1:]
    divisor = math.sqrt(head_dim) if scale is None else 1 / scale

    def attended(queries: tuple[jax.Array, jax.Array]) -> jax.Array:
        some, of = queries
        scores = jnp.einsum("qhd,khd->hqk", some, k, preferred_element_type=jnp.float32) / divisor
        scores = jnp.where(of[:, None] == image, scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return jnp.einsum("hqk,khd->qhd", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)

    if len(q) <= QUERIES or len(q) % QUERIES:
        y = attended((q, image))
    else:
        y = jax.lax.map(attended, (q.reshape(-1, QUERIES, heads, head_dim), image.reshape(-1, QUERIES)))
    return y.reshape(len(q), heads * head_dim)


def linear(
    key: str, name: str, out: int, into: int, split_out: str | None, split_in: str | None, bias: bool = True
) -> Params:
    """A weight `[out, into]`, and its bias. Where an axis does not divide, each device has it whole."""
    params: Params = {key: Param((out, into), (split_out, split_in), tensor(f"{name}.weight", out, into))}
    if bias:
        source = tensor(f"{name}.bias", out)
        params[f"{key}_bias"] = Param((out,), (split_out,), source, constant=0.0, wide=True)
    return params


def split_in_file(name: str, width: int, split: str | None) -> Params:
    """q, k and v, which lie one after another in the file, each with its bias; each is split by head."""
    params: Params = {}
    for number, which in enumerate("qkv"):
        first = number * width
        rows = Rows(f"{name}.weight", (3 * width, width), first, first + width)
        biases = Rows(f"{name}.bias", (3 * width,), first, first + width)
        params[which] = Param((width, width), (split, None), (rows,))
        params[f"{which}_bias"] = Param((width,), (split,), (biases,), constant=0.0, wide=True)
    return params


def multiplied(x: jax.Array, own: Params, key: str) -> jax.Array:
    """`[N, in]` times a weight `[out, in]`, plus its bias if it has one. XLA adds what its split needs."""
    y = jax.lax.dot_general(x, own[key], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return (y + own[f"{key}_bias"] if f"{key}_bias" in own else y).astype(x.dtype)
