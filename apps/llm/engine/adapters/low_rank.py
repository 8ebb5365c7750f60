"""The low-rank matrices of one product, for all adapters at once.

An adapter adds `B @ A @ x` to a product (Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685). The matrices of all
adapters lie side by side, each in its place. A step multiplies every token by all of them at once and, between A and B,
puts zeros for what is not of the token's own adapter. So the adapters of a batch need no sorting and no programs of
their own, and a step takes as long with one adapter as with all. Tokens without one get exactly what the model alone
computes.

Zeros are put, not multiplied by: another adapter's product may overflow, and infinity times 0 is not 0. For the same
reason every number in B must be finite, whosever place it is in: `peft` refuses an adapter with others.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from apps.arrays.quantization import product
from apps.llm.engine.execute.step import Batch


class LowRank(NamedTuple):
    """The matrices of one product; those of a single adapter have no axis `adapters`.

    The fused product into q, k and v has three inputs: q's A, k's, v's. Its outputs are slices of the fused rows: the
    first, second... query heads of all groups, then the key heads, the value heads. Where keys give the values too, it
    has no input and no output for them. The product into gate and up has
    two inputs and two outputs, the others have one.
    """

    a: Any  # [inputs, adapters, rank, in]
    b: Any  # [outputs, adapters, rank, out], times the adapter's scale


class AdaptedProduct(NamedTuple):
    """The sizes of a product that adapters can change: those of `LowRank`, but for the rank."""

    inputs: int
    width: int  # `in`
    outputs: int
    out: int
    split: Literal["in", "out"]
    """The axis of the parameter that is split over the mesh: A or B is split with it."""


Owned = tuple[LowRank, jax.Array]
"""A product's matrices, and the step's `owned`."""


def owned(batch: Batch, adapters: int) -> jax.Array:
    """`[T, adapters]` bool: which one each token has."""
    own = batch.adapter[batch.sequence_of_token()]
    return own[:, None] == jnp.arange(1, adapters + 1)


def delta(x: jax.Array, adapted: Owned) -> jax.Array:
    """What each token's adapter adds to a product of x `[T, in]`: `[outputs, T, out]` float32."""
    low, own = adapted
    inputs, adapters, rank, width = low.a.shape
    outputs, *_, out = low.b.shape
    inner = product(x, low.a.reshape(-1, width)).reshape(len(x), inputs, adapters, rank)
    inner = jnp.where(own[:, None, :, None], inner, 0.0).astype(x.dtype).reshape(len(x), inputs, adapters * rank)
    if outputs > inputs:  # the heads of a group share q's
        inner = jnp.concatenate([inner[:, :1]] * (outputs - inputs) + [inner], axis=1)
    return jax.lax.dot_general(
        inner,
        low.b.reshape(outputs, adapters * rank, out),
        (((2,), (1,)), ((1,), (0,))),
        preferred_element_type=jnp.float32,
    )


def plus(y: jax.Array, x: jax.Array, adapted: Owned | None, axis: int) -> jax.Array:
    """A product of x, plus what the adapters add; the outputs of `delta` are its axis `axis`."""
    if adapted is None:
        return y
    added = jnp.moveaxis(delta(x, adapted), 0, 1)  # [T, outputs, out]
    shape = (len(x), y.shape[axis], *y.shape[1:axis], *y.shape[axis + 1 :])
    return y + jnp.moveaxis(added.reshape(shape), 1, axis)
