"""Attention through jax's ragged paged attention kernel for TPU (jax.experimental.pallas.ops.tpu)."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import PartitionSpec as P

from apps.llm.engine.attention.spec import QKV, AttentionSpec, slots
from apps.llm.engine.execute.step import Batch

LOWEST = -1e30
LANES = 128  # the kernel needs head_dim in whole vector registers


class Blocks(NamedTuple):
    """The kernel's block sizes."""

    queries: int
    positions: int


def blocks(tokens: int, seqs: int, page_size: int, max_pages: int) -> Blocks:
    """Block sizes for a step of `tokens` tokens and `seqs` sequences.

    The kernel computes a whole block of queries for each block of positions, and a decode step uses only one of them,
    so there a block is just a register's rows. By the TPU compiler's instructions (counted by `python -m apps.plan`),
    Llama 3 8B at 64 x 2048 on v5e 2x4 takes 41 % of the cycles that 32 queries and 256 positions would take.
    """
    queries = DECODE_QUERIES if tokens <= seqs else PREFILL_QUERIES
    return Blocks(min(queries, tokens), page_size * max(1, min(max_pages, POSITIONS // page_size)))


DECODE_QUERIES, PREFILL_QUERIES, POSITIONS = 8, 32, 512


def padded(head_dim: int) -> int:
    return -(-head_dim // LANES) * LANES


def has_sinks(head_dim: int) -> bool:
    """Whether attention sinks can be computed for heads of this width."""
    return padded(head_dim) > head_dim


def tileable(kv_heads: int, dtype: jnp.dtype) -> int:
    """The smallest number of key/value heads, at least `kv_heads`, whose rows fill whole tiles of the cache's type."""
    rows_per_word = 4 // jnp.dtype(dtype).itemsize
    while True:
        words, rest = divmod(2 * kv_heads, rows_per_word)
        if not rest and (words in (1, 2, 4) or words % 8 == 0):
            return kv_heads
        kv_heads += 1


@dataclass(frozen=True)
class PallasAttention:
    """The cache is `[pages, page_size, 2 * kv_heads, head_dim]`, with a head's key and value next to each other.

    Wide heads are kept in several such arrays. Where the kernel cannot tile a device's share of the heads (one int8
    head, say), it is padded with heads of zeros.

    The kernel has no attention sinks. They are taken into account after it, for heads that leave a lane free.
    """

    devices: int = 1  # that the heads are split over
    on_tpu: bool = False  # elsewhere the kernel is interpreted and has no memory spaces

    def cache(
        self, spec: AttentionSpec, pages: int, dtype: jnp.dtype
    ) -> jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...]:
        heads, dim = spec.kv_heads // self.devices, padded(spec.head_dim)
        if dim == LANES or heads == 1:
            return self._array(heads, pages, spec.page_size, dim, dtype)
        # The kernel selects one of several heads by a strided load, which the TPU compiler supports for 128 lanes only.
        # So wider heads (Gemma's 256) are split into arrays of as many heads as share a 32-bit word.
        together = max(1, 2 // jnp.dtype(dtype).itemsize)
        together = together if heads % together == 0 else 1
        return (self._array(together, pages, spec.page_size, dim, dtype),) * (heads // together)

    def _array(self, heads: int, pages: int, page_size: int, dim: int, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((pages, page_size, 2 * tileable(heads, dtype) * self.devices, dim), dtype)

    def partition(self) -> P:
        return P(None, None, "tensor", None)

    def plan(self, batch: Batch, spec: AttentionSpec) -> jax.Array:
        return slots(batch, spec.page_size)[0]

    def attend(
        self,
        new: QKV[jax.Array],
        cache: jax.Array | tuple[jax.Array, ...],
        plan: jax.Array,
        batch: Batch,
        spec: AttentionSpec,
    ) -> tuple[jax.Array, jax.Array | tuple[jax.Array, ...]]:
        if not isinstance(cache, tuple):
            return self._attend(new, cache, plan, batch, spec)
        few = replace(spec, kv_heads=spec.kv_heads // len(cache))
        q = jnp.split(new.q, len(cache), axis=1)
        k, v = ([None] * len(cache) if x is None else jnp.split(x, len(cache), axis=1) for x in (new.k, new.v))
        sinks = [None] * len(cache) if new.sinks is None else jnp.split(new.sinks, len(cache))
        shares = [QKV(*parts) for parts in zip(q, k, v, sinks)]
        done = [self._attend(share, part, plan, batch, few) for share, part in zip(shares, cache)]
        return jnp.concatenate([out for out, _ in done], axis=1), tuple(part for _, part in done)

    def read(
        self, cache: jax.Array | tuple[jax.Array, ...], pages: jax.Array, spec: AttentionSpec, dtype: jnp.dtype
    ) -> tuple[jax.Array, jax.Array]:
        parts = cache if isinstance(cache, tuple) else (cache,)
        rows = 2 * (spec.kv_heads // len(parts))
        found = [part[pages].reshape(-1, *part.shape[2:])[:, :rows, : spec.head_dim] for part in parts]
        pairs = jnp.concatenate(found, axis=1).astype(dtype)
        return pairs[:, 0::2], pairs[:, 1::2]

    def _attend(
        self, new: QKV[jax.Array], cache: jax.Array, plan: jax.Array, batch: Batch, spec: AttentionSpec
    ) -> tuple[jax.Array, jax.Array]:
        q, k, v, sinks = new
        tokens, dim = q.shape[0], spec.head_dim
        heads, more = spec.kv_heads * spec.group, cache.shape[2] // 2 - spec.kv_heads

        def pad(x: jax.Array, more_heads: int) -> jax.Array:
            return jnp.pad(x, ((0, 0), (0, more_heads), (0, padded(dim) - dim)))

        def written(pairs: jax.Array, cache: jax.Array) -> jax.Array:
            return cache.reshape(-1, *cache.shape[2:]).at[plan].set(pairs).reshape(cache.shape)

        if k is not None and v is not None:
            pairs = jnp.stack([k, v], axis=2).reshape(tokens, 2 * spec.kv_heads, dim)
            pairs = pad(pairs, 2 * more).astype(cache.dtype)
            # With sinks, this step's values have a 1 in a channel that is otherwise padding; see `_seen`.
            cache = written(pairs if sinks is None else pairs.at[:, 1::2, dim].set(1), cache)
        queries = pad(q.reshape(tokens, heads, dim), more * spec.group)
        block = blocks(tokens, batch.pages.shape[0], spec.page_size, batch.pages.shape[1])
        out = ragged_paged_attention(
            queries,
            # Otherwise XLA copies a layer's cache that fits into VMEM there and back in every step, to write a few
            # rows: for the 175B model on 32 chips a third of all HBM traffic.
            pltpu.with_memory_space_constraint(cache, pltpu.HBM) if self.on_tpu else cache,
            batch.kv_lens,
            batch.pages,
            batch.q_starts,
            batch.num_seqs,
            sm_scale=spec.scale,
            sliding_window=spec.window,
            soft_cap=spec.softcap,
            # An int8 cache's real scales are folded into q and the output; 1.0 only makes the kernel convert the type.
            k_scale=1.0 if cache.dtype.itemsize == 1 else None,
            v_scale=1.0 if cache.dtype.itemsize == 1 else None,
            # Set explicitly, because the kernel's own table needs a local device, and ahead-of-time compiling has none.
            num_kv_pages_per_block=block.positions // spec.page_size,
            num_queries_per_block=block.queries,
        )
        if sinks is None or k is None:
            assert sinks is None, "no model has sinks where it attends to another layer's keys"
            return out[:, :heads, :dim].reshape(q.shape), cache
        share = out[:, :heads, dim].reshape(q.shape[:3]).astype(jnp.float32)
        seen = _seen(q, k, share, batch, spec)
        out = out[:, :heads, :dim].reshape(q.shape) * jax.nn.sigmoid(seen - sinks)[..., None]
        return out.astype(q.dtype), written(pairs, cache)


def _seen(q: jax.Array, k: jax.Array, share: jax.Array, batch: Batch, spec: AttentionSpec) -> jax.Array:
    """The logarithm of what each query's softmax divides by, `[T, kv_heads, group]`, which the kernel keeps to itself.

    A query's own sequence has at least one key of this step, its token's. What these weigh is computed here, and which
    share of the whole that is, the kernel says.

    Args:
        share: `[T, kv_heads, group]`, how much of its attention a query gives to this step's keys.
    """
    position, seq = slots(batch, spec.page_size)[1], batch.sequence_of_token()
    scores = jnp.einsum("tkgd,skd->kgts", q, k.astype(q.dtype), preferred_element_type=jnp.float32) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * jnp.tanh(scores / spec.softcap)
    visible = (seq[:, None] == seq) & (position <= position[:, None]) & (jnp.arange(len(seq)) < batch.q_starts[-1])
    if spec.window is not None:
        visible &= position > position[:, None] - spec.window
    own = jax.nn.logsumexp(jnp.where(visible, scores, LOWEST), axis=-1)
    return jnp.moveaxis(own, -1, 0) - jnp.log(jnp.maximum(share, jnp.finfo(jnp.float32).tiny))
