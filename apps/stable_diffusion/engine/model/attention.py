"""Attention: a Pallas kernel for TPU where sequences are long, plain XLA everywhere else.

A UNet's self attention at 64 x 64 latents writes 4096 x 4096 scores for every head and picture; the kernel keeps them
on the chip. It reads heads where the projections put them, side by side in the last dimension: nothing is transposed.
The compiler makes a third fewer instructions of it than of jax's flash attention kernel (v4, v5e and v6e with heads of
40, v5p with 64).
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LONG = 1024  # positions from which the kernel pays off; below, the scores are small
QUERIES, KEYS = 512, 4096  # whose scores are in VMEM at a time
LANES = 128  # a vector register's width
UNSEEN = -1e30  # score of a key that is not attended to: finite, for a block of keys may have no other


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    heads: int,
    implementation: str,
    causal: bool = False,
    head_dim: int | None = None,
    seen: jax.Array | None = None,
) -> jax.Array:
    """Scaled dot product attention.

    Args:
        q: [batch, queries, heads * lanes]; `k` and `v` [batch, positions, heads * lanes].
        implementation: `xla`; or `flash`, which takes long self attention on a TPU and leaves the rest to XLA.
        head_dim: a head's dimensions, if zeros fill up its lanes (see `head_lanes`); default: all of its lanes.
        seen: [batch, positions] bool, the keys that are attended to; default: all.

    Returns:
        [batch, queries, heads * lanes] in q's type.
    """
    head_dim = head_dim or q.shape[-1] // heads
    if not causal and _suits_kernel(q.shape[1], k.shape[1], implementation):
        return _flash(q, k, v, heads, head_dim, seen)
    return _plain(q, k, v, heads, head_dim, causal, seen)


def head_lanes(heads: int, head_dim: int, queries: int, positions: int, implementation: str) -> int:
    """Lanes for a head in q, k and v that spare `attend` a copy: for the kernel, heads end where registers do."""
    if not _suits_kernel(queries, positions, implementation):
        return head_dim
    packed, width = tile(heads, head_dim)
    return width // packed


def pad_heads(x: jax.Array, heads: int, lanes: int, axis: int = -1) -> jax.Array:
    """Fills up each head with zeros on an axis: heads * head_dim -> heads * lanes."""
    axis %= x.ndim
    before, head_dim, after = x.shape[:axis], x.shape[axis] // heads, x.shape[axis + 1 :]
    if head_dim == lanes:
        return x
    around = [(0, 0)] * (x.ndim + 1)
    around[axis + 1] = (0, lanes - head_dim)
    return jnp.pad(x.reshape(*before, heads, head_dim, *after), around).reshape(*before, heads * lanes, *after)


def tile(heads: int, head_dim: int) -> tuple[int, int]:
    """(heads side by side in a tile, the tile's lanes, which are whole registers)."""
    packed = 2 if heads % 2 == 0 and head_dim <= LANES // 2 else 1
    return packed, LANES * math.ceil(packed * head_dim / LANES)


def blocks(positions: int, width: int, itemsize: int) -> tuple[int, int]:
    """(queries, keys) that the kernel takes at a time, of tiles of this width. Both divide the positions.

    float32, which a TPU multiplies in several passes, needs more room for what lies between them.
    """

    def largest(most: int) -> int:
        return next(size for size in range(min(most, positions) // LANES * LANES, 0, -LANES) if positions % size == 0)

    return largest(QUERIES), largest(max(LANES, KEYS * LANES // width // (1 if itemsize == 2 else 8)))


def _suits_kernel(queries: int, positions: int, implementation: str) -> bool:
    return implementation == "flash" and queries == positions and positions >= LONG and positions % LANES == 0


def _split(x: jax.Array, heads: int) -> jax.Array:
    """[batch, positions, heads * head_dim] -> [batch, heads, positions, head_dim]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _join(x: jax.Array) -> jax.Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _plain(
    q: jax.Array, k: jax.Array, v: jax.Array, heads: int, head_dim: int, causal: bool, seen: jax.Array | None
) -> jax.Array:
    q, k, v = (_split(x, heads) for x in (q, k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * head_dim**-0.5
    if causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    if seen is not None:
        scores = jnp.where(seen[:, None, None], scores, UNSEEN)
    return _join(jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v))


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, heads: int, head_dim: int, seen: jax.Array | None) -> jax.Array:
    batch, positions, given = q.shape[0], q.shape[1], q.shape[2] // heads
    packed, width = tile(heads, head_dim)
    queries, keys = blocks(positions, width, q.dtype.itemsize)
    q = (q * (head_dim**-0.5 * math.log2(math.e))).astype(q.dtype)  # the kernel's powers are of two
    scores = batch * heads * positions**2
    reads = 1 if keys == positions else positions // queries  # of a key: it stays in VMEM if one block has them all
    moved = (2 + 2 * reads) * batch * positions * (heads // packed) * width * q.dtype.itemsize
    of_queries = pl.BlockSpec((1, queries, width), lambda i, tile, block, _: (i, block, tile))
    of_keys = pl.BlockSpec((1, keys, width), lambda i, tile, _, block: (i, block, tile))
    more, of_more = [], []
    if seen is not None:
        more = [jnp.where(seen, 0, UNSEEN).astype(jnp.float32)[:, None]]
        of_more = [pl.BlockSpec((1, 1, keys), lambda i, tile, _, block: (i, 0, block))]
    out = pl.pallas_call(
        partial(_kernel, packed=packed, masked=seen is not None),
        grid=(batch, heads // packed, positions // queries, positions // keys),
        in_specs=[of_queries, of_keys, of_keys, *of_more],
        out_specs=of_queries,
        out_shape=jax.ShapeDtypeStruct((batch, positions, heads // packed * width), q.dtype),
        scratch_shapes=[pltpu.VMEM((packed, queries, n), jnp.float32) for n in (1, 1, width) if keys < positions],
        cost_estimate=pl.CostEstimate(flops=4 * scores * head_dim, bytes_accessed=moved, transcendentals=scores),
        name="attention",
    )(*(pad_heads(x, heads, width // packed) for x in (q, k, v)), *more)
    return out.reshape(batch, positions, heads, -1)[..., :given].reshape(q.shape)


def _kernel(q_ref: Any, k_ref: Any, v_ref: Any, *others: Any, packed: int, masked: bool) -> None:
    """One tile of heads, for one block of queries and one of keys: [1, queries or keys, width].

    Args:
        others: if `masked`, what is added to the scores of each key, [1, 1, keys]; the output, like q; and of several
            blocks of keys, the scores' maximum and the sum of weights [packed, queries, 1], and the weighted sum of
            values [packed, queries, width], of which a head's own lanes count.
    """
    out_ref, *state = others[masked:]
    q, out = q_ref[0], jnp.zeros(q_ref.shape[1:], jnp.float32)
    width = q.shape[1]
    head = jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, (1, width), 1), width // packed)  # of each lane
    if state:

        @pl.when(pl.program_id(3) == 0)
        def _() -> None:
            for part, start in zip(state, (-jnp.inf, 0, 0)):
                part[...] = jnp.full(part.shape, start, jnp.float32)

    for i in range(packed):
        mine = jnp.where(head == i, q, 0).astype(q.dtype)  # zeros hide the other heads' keys
        scores = _product(mine, k_ref[0], 1)
        if masked:
            scores = scores + others[0][0]
        most = scores.max(1, keepdims=True)
        if state:
            most = jnp.maximum(most, state[0][i])
        weights = jnp.exp2(scores - most)
        total = weights.sum(1, keepdims=True)
        sums = _product(weights.astype(q.dtype), v_ref[0], 0)
        if state:
            fade = jnp.exp2(state[0][i] - most)
            total, sums = total + fade * state[1][i], sums + fade * state[2][i]
            for part, now in zip(state, (most, total, sums)):
                part[i] = now
        out = jnp.where(head == i, sums / total, out)
    out_ref[0] = out.astype(out_ref.dtype)  # the last block of keys has the last word


def _product(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Matrix product over a's columns and this axis of b."""
    return jax.lax.dot_general(a, b, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)
