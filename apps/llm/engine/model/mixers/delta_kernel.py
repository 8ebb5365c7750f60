"""A TPU kernel for the gated delta rule over one token of each of many sequences.

It takes the memories of the step's sequences, each once, where they are. XLA computes with those of all slots, which
by its own count takes more cycles. `delta_rule.one_token` says what is computed; this is the same in another order of
sums.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

NAME = "delta_rule_one_token"
LANES, ROWS = 128, 8
MOST = 2**20
"""Bytes of a block of memory. Four are in the chip's own memory at a time."""


def takes(key_dim: int, value_dim: int) -> bool:
    """Whether memories of that size fill whole registers."""
    return key_dim % ROWS == 0 and value_dim % LANES == 0 and key_dim * value_dim * 4 <= MOST


def heads_together(heads: int, key_dim: int, value_dim: int) -> int:
    """Of how many heads a block has the memories."""
    return max(n for n in range(1, heads + 1) if heads % n == 0 and n * key_dim * value_dim * 4 <= MOST)


def one_token(
    tokens: Any, memory: jax.Array, slots: jax.Array, new: jax.Array, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The rule over one token of each sequence.

    Args:
        tokens: a `DeltaTokens` of `[S, heads, ...]`.
        memory: `[slots, heads, key_dim, value_dim]` float32, written in place.
        slots: `[S]` each sequence's slot. Several may have the same one: nobody is to want what is in it then.
        new: `[S]` whether the sequence has no memory yet.

    Returns:
        `[S, heads, value_dim]` float32, and the memory.
    """
    q, k, v, decay, strength = tokens
    seqs, heads, key_dim = k.shape
    value_dim = v.shape[-1]
    together = heads_together(heads, key_dim, value_dim)
    groups = heads // together

    def by_row(each: jax.Array) -> jax.Array:  # [S, groups, heads of a group, value_dim]
        return jnp.broadcast_to(each, v.shape).reshape(seqs, groups, together, value_dim)

    def by_column(each: jax.Array) -> jax.Array:  # [S, groups, key_dim, heads of a group]
        return jnp.swapaxes(each.reshape(seqs, groups, together, key_dim), 2, 3)

    left, strength = jnp.exp(decay)[..., None], strength[..., None]
    rows = left, left * strength, v * strength, jnp.sum(q * k, axis=-1, keepdims=True)
    given = (*map(by_row, rows), by_column(k), by_column(q))
    own = [pl.BlockSpec((1, 1, *each.shape[2:]), lambda s, g, slots, new: (s, g, 0, 0)) for each in given]
    place = pl.BlockSpec((1, 1, together, key_dim, value_dim), lambda s, g, slots, new: (slots[s], g, 0, 0, 0))
    shape = (len(memory), groups, together, key_dim, value_dim)
    y, memory = pl.pallas_call(
        partial(_body, together),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2, grid=(seqs, groups), in_specs=[*own, place], out_specs=[own[0], place]
        ),
        out_shape=[
            jax.ShapeDtypeStruct((seqs, groups, together, value_dim), jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ],
        input_output_aliases={2 + len(given): 1},
        cost_estimate=pl.CostEstimate(  # for the compiler's schedule
            flops=8 * seqs * heads * key_dim * value_dim,
            bytes_accessed=8 * seqs * heads * key_dim * value_dim + 4 * sum(each.size for each in given),
            transcendentals=0,
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
        name=NAME,
    )(slots.astype(jnp.int32), new.astype(jnp.int32), *given, memory.reshape(shape))
    return y.reshape(v.shape), memory.reshape(len(memory), heads, key_dim, value_dim)


def _body(heads: int, slots: Any, new: Any, *refs: Any) -> None:
    left, left_strength, given, asked_own, k, q, memory, y, written = refs
    begins = new[pl.program_id(0)] > 0
    for head in range(heads):
        rows = slice(head, head + 1)
        before = jnp.where(begins, 0.0, memory[0, 0, head])  # [key_dim, value_dim]
        column_k, column_q = k[0, 0, :, rows], q[0, 0, :, rows]  # [key_dim, 1]
        of_k = jnp.sum(before * column_k, axis=0, keepdims=True)
        of_q = jnp.sum(before * column_q, axis=0, keepdims=True)
        write = given[0, 0, rows] - left_strength[0, 0, rows] * of_k
        y[0, 0, rows] = left[0, 0, rows] * of_q + asked_own[0, 0, rows] * write
        written[0, 0, head] = left[0, 0, rows] * before + column_k * write
