"""Attention in plain XLA: a loop over pieces of work, each one block of queries against one block of keys.

The number of pieces follows the sequences' actual lengths, so a step costs what its tokens need, with one compiled
program for all lengths. The loop makes two sweeps: decoding tokens as blocks of one query, then prefill chunks as
blocks of QUERY_BLOCK.

Results do not depend on the rest of the batch, so the same seed gives the same text. Each piece keeps its own softmax
maximum, rounded up to an integer in base 2, so that rescaling a piece multiplies by a power of two, which is exact.
A token's pieces are always added in the order of their keys.
"""

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from apps.arrays.quantization import Leaf
from apps.llm.engine.attention.spec import FP8, QKV, AttentionSpec, slots
from apps.llm.engine.execute.step import Batch

KEY_BLOCK = 128  # keys of one piece
QUERY_BLOCK = 16  # queries of one piece of a prefill chunk
LOWEST = -1e30
LOG2_E = 1.4426950408889634
BITS = {jnp.dtype(jnp.bfloat16): jnp.dtype(jnp.uint16), FP8: jnp.dtype(jnp.uint8)}


class XlaCache(NamedTuple, Generic[Leaf]):
    """`[pages, page_size, kv_heads, head_dim]`; bfloat16 and FP8 are stored as their bits, see `_bits`."""

    k: Leaf
    v: Leaf


class Sweep(NamedTuple):
    """Pieces of work for blocks of `B` queries: `N` blocks, `I` pieces (padded to whole chunks)."""

    block_tokens: jax.Array  # [N + 1, B] token of each query
    positions: jax.Array  # [N + 1, B] position of each query; -1: no query, its token is to be ignored
    piece_block: jax.Array  # [I] block of a piece; N: none
    piece_start: jax.Array  # [I] position of its first key
    piece_pages: jax.Array  # [I, KEY_BLOCK / page_size]
    pieces: jax.Array  # [] number of pieces


class SweepPlan(NamedTuple):
    slots: jax.Array  # [T] where keys and values go
    single: Sweep  # single tokens
    blocks: Sweep | None  # prefill chunks; None in steps so small that all tokens go into `single`
    token_row: jax.Array | None  # [T] row of a token's output in the concatenated outputs of `single` and `blocks`


class XlaAttention:
    def cache(self, spec: AttentionSpec, pages: int, dtype: jnp.dtype) -> XlaCache[jax.ShapeDtypeStruct]:
        shape = (pages, spec.page_size, spec.kv_heads, spec.head_dim)
        stored = jax.ShapeDtypeStruct(shape, BITS.get(jnp.dtype(dtype), dtype))
        return XlaCache(stored, stored)

    def partition(self) -> XlaCache[P]:
        heads = P(None, None, "tensor", None)
        return XlaCache(heads, heads)

    def plan(self, batch: Batch, spec: AttentionSpec) -> SweepPlan:
        slot, position = slots(batch, spec.page_size)
        num_tokens, num_seqs = batch.tokens.shape[0], batch.kv_lens.shape[0]
        seq, t = batch.sequence_of_token(), jnp.arange(num_tokens)
        real = t < batch.q_starts[-1]
        # Decodes come first, so those of a mixed step are within its first `num_seqs` tokens. A step no larger than
        # the batch has no second sweep: all its tokens are single.
        blocks, token_row = None, None
        if num_tokens <= num_seqs:
            alone = real
        else:
            t, seq, position = t[:num_seqs], seq[:num_seqs], position[:num_seqs]
            alone = real[:num_seqs] & (batch.q_lens[seq] == 1)
            blocks, token_row = _prefill_sweep(batch, spec)
        single = _sweep(t[:, None], jnp.where(alone, position, -1)[:, None], seq, batch, spec)
        return SweepPlan(slot, single, blocks, token_row)

    def attend(
        self, new: QKV[jax.Array], cache: XlaCache[jax.Array], plan: SweepPlan, batch: Batch, spec: AttentionSpec
    ) -> tuple[jax.Array, XlaCache[jax.Array]]:
        q, k, v, sinks = new
        if k is not None and v is not None:
            cache = XlaCache(_write(cache.k, k, plan.slots), _write(cache.v, v, plan.slots))
        out = _run(q, cache, plan.single, spec, sinks)[:-1].reshape(-1, *q.shape[1:])
        if plan.blocks is not None:
            chunks = _run(q, cache, plan.blocks, spec, sinks).reshape(-1, *q.shape[1:])
            out = jnp.concatenate([out, chunks])[plan.token_row]
        return out.astype(q.dtype), cache

    def read(
        self, cache: XlaCache[jax.Array], pages: jax.Array, spec: AttentionSpec, dtype: jnp.dtype
    ) -> tuple[jax.Array, jax.Array]:
        k, v = (_unbits(part[pages].reshape(-1, *part.shape[2:]), dtype) for part in cache)
        return k, v


def _bits(x: jax.Array) -> jax.Array:
    """bfloat16 and FP8 as integers, for copies: XLA:CPU would convert to float32 and back, a scatter the cache."""
    return jax.lax.bitcast_convert_type(x, BITS[x.dtype]) if x.dtype in BITS else x


def _unbits(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    stored = next((float_ for float_, bits in BITS.items() if bits == x.dtype), None)
    return (x if stored is None else jax.lax.bitcast_convert_type(x, stored)).astype(dtype)


def _write(pages: jax.Array, new: jax.Array, slot: jax.Array) -> jax.Array:
    flat = pages.reshape(-1, pages.shape[2] * pages.shape[3])
    return flat.at[slot].set(_bits(new).reshape(len(slot), -1)).reshape(pages.shape)


def _gather(pages: jax.Array, wanted: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Gather blocks of keys or values: `[pieces, pages]` -> `[pieces, KEY_BLOCK, kv_heads * head_dim]`."""
    return _unbits(pages[wanted].reshape(wanted.shape[0], -1, pages.shape[2] * pages.shape[3]), dtype)


def _prefill_sweep(batch: Batch, spec: AttentionSpec) -> tuple[Sweep, jax.Array]:
    """The sweep of all sequences that are not in the single sweep, in blocks of QUERY_BLOCK; and the `token_row`."""
    num_tokens, num_seqs = batch.tokens.shape[0], batch.kv_lens.shape[0]
    count = num_tokens // QUERY_BLOCK + num_seqs  # most blocks possible: each sequence's last one may be partly filled
    alone = (batch.q_lens == 1) & (batch.q_starts[:-1] < num_seqs)
    per_seq = jnp.where(alone, 0, -(-batch.q_lens // QUERY_BLOCK))
    ends = jnp.cumsum(per_seq)
    block = jnp.arange(count)
    seq = jnp.minimum(jnp.sum(ends[None] <= block[:, None], axis=1), num_seqs - 1)
    offset = (block - (ends - per_seq)[seq])[:, None] * QUERY_BLOCK + jnp.arange(QUERY_BLOCK)
    real = (offset < batch.q_lens[seq][:, None]) & (block < ends[-1])[:, None]
    tokens = jnp.where(real, batch.q_starts[seq][:, None] + offset, 0)
    positions = jnp.where(real, (batch.kv_lens - batch.q_lens)[seq][:, None] + offset, -1)
    token_seq = batch.sequence_of_token()
    within = jnp.arange(num_tokens) - batch.q_starts[token_seq]
    row = num_seqs + (ends - per_seq)[token_seq] * QUERY_BLOCK + within
    token_row = jnp.where(alone[token_seq], jnp.arange(num_tokens), row)
    return _sweep(tokens, positions, seq, batch, spec), token_row


def _sweep(tokens: jax.Array, positions: jax.Array, seq: jax.Array, batch: Batch, spec: AttentionSpec) -> Sweep:
    """Cut the work of blocks `[N, B]` into pieces: one for each KEY_BLOCK of positions that a block can see."""
    count, width = tokens.shape
    last = positions.max(axis=1)
    first = jnp.zeros_like(last)
    if spec.window is not None:
        lowest = jnp.where(positions < 0, jnp.iinfo(jnp.int32).max, positions).min(axis=1)
        first = jnp.maximum(lowest - spec.window + 1, 0) // KEY_BLOCK
    per_block = jnp.where(last >= 0, last // KEY_BLOCK + 1 - first, 0)
    max_keys = batch.pages.shape[1] * spec.page_size
    chunk = _chunk(count, width)
    capacity = -(-count * -(-max_keys // KEY_BLOCK) // chunk) * chunk
    ends = jnp.cumsum(per_block)
    block = jnp.repeat(jnp.arange(count), per_block, total_repeat_length=capacity)
    piece = jnp.arange(capacity)
    key_block = first[block] + piece - (ends - per_block)[block]
    per_piece = KEY_BLOCK // spec.page_size
    page = key_block[:, None] * per_piece + jnp.arange(per_piece)
    pages = batch.pages[seq[block][:, None], jnp.clip(page, 0, batch.pages.shape[1] - 1)]
    real = piece < ends[-1]
    return Sweep(
        block_tokens=jnp.pad(tokens, ((0, 1), (0, 0))),
        positions=jnp.pad(positions, ((0, 1), (0, 0)), constant_values=-1),
        piece_block=jnp.where(real, block, count),
        piece_start=key_block * KEY_BLOCK,
        piece_pages=jnp.where(real[:, None], pages, 0),
        pieces=ends[-1],
    )


def _chunk(blocks: int, width: int) -> int:
    """Pieces in one iteration of the loop: enough to use all cores, few enough to waste little in the last one."""
    return max(4, min(32, blocks)) if width == 1 else 8


def _pow2(exponent: jax.Array) -> jax.Array:
    """2 ** exponent for integer-valued float32, exactly (`exp2` may not be exact); 0 below the normal range."""
    whole = jnp.clip(exponent, -127, 127).astype(jnp.int32)
    return jax.lax.bitcast_convert_type((whole + 127) << 23, jnp.float32)


def _run(
    q: jax.Array, cache: XlaCache[jax.Array], sweep: Sweep, spec: AttentionSpec, sinks: jax.Array | None = None
) -> jax.Array:
    """Run all pieces of a sweep. Returns the attention output by block, `[N + 1, B, heads, head_dim]` float32."""
    count, width = sweep.block_tokens.shape
    heads, dim, kv_heads, dtype = spec.kv_heads * spec.group, spec.head_dim, spec.kv_heads, q.dtype
    q = _bits(q)

    def spread(q: jax.Array) -> jax.Array:
        """Widen each query to all kv heads, with zeros outside its own, for one plain matrix product per piece
        instead of many small ones. `[n, B, kv_heads, group, head_dim]` -> `[n, B * heads, kv_heads * head_dim]`."""
        own = jnp.eye(kv_heads, dtype=bool)[None, None, :, None, :, None]
        return jnp.where(own, q[:, :, :, :, None, :], jnp.zeros((), q.dtype)).reshape(len(q), width * heads, -1)

    ones = jnp.ones((KEY_BLOCK, 8), dtype)
    queries = spread(q[:count, None]) if width == 1 else None
    chunk = _chunk(count - 1, width)

    def body(i: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        top, total, out = state  # per block and query head: maximum, sum of weights, weighted sum of values

        def take(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk)

        block, start, pages = take(sweep.piece_block), take(sweep.piece_start), take(sweep.piece_pages)
        wide = spread(q[sweep.block_tokens[block]]) if queries is None else queries[block]
        keys, values = _gather(cache.k, pages, dtype), _gather(cache.v, pages, dtype)
        key = start[:, None] + jnp.arange(KEY_BLOCK)
        # What a page's last owner left past this sequence's end may be anything: its weight is 0, but 0 * NaN is not.
        values = jnp.where((key <= sweep.positions[block].max(axis=1)[:, None])[..., None], values, 0)
        scores = jnp.einsum("pcd,pmd->pmc", keys, _unbits(wide, dtype), preferred_element_type=jnp.float32) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * jnp.tanh(scores / spec.softcap)
        seen = sweep.positions[block][:, :, None]
        mask = key[:, None] <= seen
        if spec.window is not None:
            mask &= key[:, None] > seen - spec.window
        mask = jnp.broadcast_to(mask[:, :, None], (chunk, width, heads, KEY_BLOCK)).reshape(scores.shape)
        scores = jnp.where(mask, scores * LOG2_E, LOWEST)  # to base 2
        peak = jnp.ceil(scores.max(axis=-1))
        weights = jnp.where(mask, jnp.exp2(scores - peak[..., None]), 0.0).astype(dtype)
        part = jnp.einsum("pmc,pcd->pmd", weights, values, preferred_element_type=jnp.float32)
        # The sum of the weights as a product too: adding them before rounding would take two more passes over them.
        part_total = jnp.einsum("pmc,cd->pmd", weights, ones, preferred_element_type=jnp.float32)[..., 0]
        part = part.reshape(chunk, width, kv_heads, spec.group, kv_heads, dim)
        part = jnp.stack([part[:, :, head, :, head] for head in range(kv_heads)], axis=2)
        part = part.reshape(chunk, width * heads, dim)

        higher = top.at[block].max(peak)
        # A block's pieces are adjacent: what it has so far is rescaled once, at the first of them.
        again = jnp.concatenate([jnp.zeros(1, bool), block[1:] == block[:-1]])[:, None]
        shrink = jnp.where(again, 1.0, _pow2(top[block] - higher[block]))
        fit = _pow2(peak - higher[block])
        total = total.at[block].multiply(shrink).at[block].add(part_total * fit)
        out = out.at[block].multiply(shrink[..., None]).at[block].add(part * fit[..., None])
        return higher, total, out

    state = (
        jnp.full((count, width * heads), LOWEST),
        jnp.zeros((count, width * heads)),
        jnp.zeros((count, width * heads, dim)),
    )
    top, total, out = jax.lax.fori_loop(0, -(-sweep.pieces // chunk), body, state)
    if sinks is not None:
        total = total + jnp.exp2(jnp.tile(sinks.reshape(-1) * LOG2_E, width) - top)
    return (out / jnp.maximum(total, 1e-30)[..., None]).reshape(count, width, heads, dim)
