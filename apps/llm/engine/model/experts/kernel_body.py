"""One step of the experts' kernel: a tile of the width of one expert, for all tokens that picked it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from apps.llm.engine.model.experts.weights import Activation


class Refs(NamedTuple):
    """The kernel's arrays, in the order in which `pallas_call` gives them. `T` is the number of tokens."""

    # In scalar memory, before the first step.
    ids: Any  # [experts] those that have tokens first
    counts: Any  # [experts] tokens of each
    used: Any  # [1] how many experts have tokens
    # Of all tokens.
    picked: Any  # [per_token, T]
    shares: Any  # [per_token, T]
    x: Any  # [T, hidden]
    # One tile of one expert; None where there is none such.
    into: Any  # [1, 2, tile, hidden] gate, then up
    into_scale: Any  # [1, 2, tile]
    into_bias: Any  # [1, 2, tile]
    down: Any  # [1, hidden, tile]
    down_scale: Any  # [1, 1, hidden]
    down_bias: Any  # [1, 1, hidden]
    out: Any  # [1, T, hidden]
    # Kept from step to step.
    share_of: Any  # [experts, T] each expert's share of each token
    row_of: Any  # [experts, T] the row of each token among its expert's, or -1
    total: Any  # [T, hidden] the result so far
    finite: Any  # [T, hidden] x, with 0 for NaN and infinity
    gathered: Any  # [rows, hidden] an expert's tokens
    sums: Any  # [rows, hidden] what the expert makes of them


def kernel(
    *refs: Any, expert_at: Callable[..., jax.Array], activation: Activation, block: int, width: int, tile: int
) -> None:
    """What `pallas_call` runs at each step of the grid `[cores, experts of a core, tiles]`.

    Args:
        expert_at: the expert of a core's visit.
        block: rows of one product.
        width: of an expert; the last tile may reach past it.
    """
    at = Refs(*refs)
    core, visit, step = (pl.program_id(axis) for axis in range(3))
    cores, visits, steps = (pl.num_programs(axis) for axis in range(3))
    tokens = at.x.shape[0]
    expert = expert_at(core, visit, at.ids, at.used)
    rows = jnp.where(core * pl.cdiv(at.used[0], cores) + visit < at.used[0], at.counts[expert], 0)
    computed = partial(_computed, at, activation, step, width, tile)

    @pl.when((visit == 0) & (step == 0))
    def begin() -> None:
        _begin(at, gathers=tokens > block)

    if tokens <= block:

        @pl.when(rows > 0)
        def multiply_all() -> None:
            itself = _numbers(at, 0, tokens) == jax.lax.broadcasted_iota(jnp.int32, (tokens, tokens), 1)
            share = _shares(at, expert, itself)
            at.total[...] += jnp.where(share != 0, computed(at.x[...]) * share, 0)
    else:

        def run(number: jax.Array, _: None) -> None:
            _run_block(at, expert, pl.multiple_of(number * block, block), block, computed, step, steps)

        jax.lax.fori_loop(0, pl.cdiv(rows, block), run, None)

    @pl.when((visit == visits - 1) & (step == steps - 1))
    def end() -> None:
        at.out[0] = at.total[...].astype(at.out.dtype)


def _begin(at: Refs, gathers: bool) -> None:
    """Before a core's first expert: each expert's share of each token and, to gather them, each token's row."""
    at.total[...] = jnp.zeros_like(at.total)
    count, tokens = at.share_of.shape
    number = jax.lax.broadcasted_iota(jnp.int32, (count, tokens), 0)
    share, taken = jnp.zeros((count, tokens), jnp.float32), jnp.zeros((count, tokens), jnp.float32)
    for pick in range(at.picked.shape[0]):
        hit = at.picked[pick : pick + 1, :] == number
        share += jnp.where(hit, at.shares[pick : pick + 1, :], 0.0)
        taken += jnp.where(hit, 1.0, 0.0)
    at.share_of[...] = share
    if gathers:
        at.row_of[...] = jnp.where(taken > 0, _running_sum(taken) - taken, -1.0)
        # Times zero, one token's NaN would reach all others.
        at.finite[...] = jnp.where(jnp.isfinite(at.x[...].astype(jnp.float32)), at.x[...], jnp.zeros_like(at.x[...]))


def _computed(at: Refs, activation: Activation, step: jax.Array, width: int, tile: int, rows: jax.Array) -> jax.Array:
    """What tile `step` of the expert makes of `[rows, hidden]`."""
    dtype = at.x.dtype
    gate, up = (_dot(rows, at.into[0, which].astype(dtype), ((1,), (1,))) for which in (0, 1))
    if at.into_scale is not None:
        gate, up = gate * at.into_scale[0, 0:1, :], up * at.into_scale[0, 1:2, :]
    if at.into_bias is not None:
        gate, up = gate + at.into_bias[0, 0:1, :], up + at.into_bias[0, 1:2, :]
    inner, matrix = activation(gate, up), at.down[0].astype(dtype)
    if width % tile:  # the last tile reaches past the end, and what is there may be anything
        inner, matrix = (
            jnp.where(jax.lax.broadcasted_iota(jnp.int32, part.shape, 1) < width - step * tile, part, 0)
            for part in (inner, matrix)
        )
    y = _dot(inner.astype(dtype), matrix, ((1,), (1,)))
    if at.down_scale is not None:
        y = y * at.down_scale[0]
    return y if at.down_bias is None else y + jnp.where(step == 0, at.down_bias[0], 0.0)


def _run_block(
    at: Refs,
    expert: jax.Array,
    first: jax.Array | int,
    block: int,
    computed: Callable[[jax.Array], jax.Array],
    step: jax.Array,
    steps: jax.Array | int,
) -> None:
    """Rows `[first, first + block)` of an expert's tokens: gathered at its first tile, added up after its last."""
    rows, dtype = pl.ds(first, block), at.x.dtype

    def chosen() -> jax.Array:
        """Which token each row is, `[block, T]`."""
        return at.row_of[pl.ds(expert, 1), :] == _numbers(at, first, block).astype(jnp.float32)

    @pl.when(step == 0)
    def gather() -> None:
        at.gathered[rows, :] = _dot(chosen().astype(dtype), at.finite[...], ((1,), (0,))).astype(dtype)
        at.sums[rows, :] = jnp.zeros((block, at.sums.shape[1]), jnp.float32)

    at.sums[rows, :] += computed(at.gathered[rows, :])

    @pl.when(step == steps - 1)
    def add() -> None:
        y = at.sums[rows, :] * _shares(at, expert, chosen())
        y = jnp.where(jnp.isfinite(y), y, 0).astype(dtype)
        at.total[...] += _dot(chosen().astype(dtype), y, ((0,), (0,)))


def _shares(at: Refs, expert: jax.Array, chosen: jax.Array) -> jax.Array:
    """The share of each row's token, `[rows, 1]`; `chosen` `[rows, T]` says which that is."""
    return jnp.sum(jnp.where(chosen, at.share_of[pl.ds(expert, 1), :], 0.0), axis=1, keepdims=True)


def _numbers(at: Refs, first: jax.Array | int, rows: int) -> jax.Array:
    """`[rows, T]`: each row's number, from `first` on."""
    return jax.lax.broadcasted_iota(jnp.int32, (rows, at.x.shape[0]), 0) + first


def _running_sum(x: jax.Array) -> jax.Array:
    """Sums along the lanes, each including its own."""
    lane, distance = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1), 1
    while distance < x.shape[1]:
        x = x + jnp.where(lane >= distance, pltpu.roll(x, distance, 1), 0.0)
        distance *= 2
    return x


def _dot(a: jax.Array, b: jax.Array, over: tuple[tuple[int, ...], tuple[int, ...]]) -> jax.Array:
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (over, ((), ())), preferred_element_type=jnp.float32, precision=exact)
