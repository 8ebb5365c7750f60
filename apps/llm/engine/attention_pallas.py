"""Attention through jax's ragged paged attention kernel for TPU (jax.experimental.pallas.ops.tpu)."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import PartitionSpec as P

from apps.llm.engine.attention import AttentionSpec, slots
from apps.llm.engine.step import Batch

LANES = 128  # the kernel wants head_dim in whole vector registers


def padded(head_dim: int) -> int:
    return -(-head_dim // LANES) * LANES


class PallasAttention:
    """The cache is `[pages, page_size, 2 * kv_heads, head_dim]`: key and value of a head lie side by side."""

    def cache(self, spec: AttentionSpec, pages: int, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        shape = (pages, spec.page_size, 2 * spec.kv_heads, padded(spec.head_dim))
        return jax.ShapeDtypeStruct(shape, dtype)

    def partition(self) -> P:
        return P(None, None, "tensor", None)

    def plan(self, batch: Batch, spec: AttentionSpec) -> jax.Array:
        return slots(batch, spec.page_size)[0]

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        cache: jax.Array,
        plan: jax.Array,
        batch: Batch,
        spec: AttentionSpec,
    ) -> tuple[jax.Array, jax.Array]:
        tokens, dim = q.shape[0], spec.head_dim
        pad = ((0, 0), (0, 0), (0, padded(dim) - dim))
        new = jnp.stack([k, v], axis=2).reshape(tokens, 2 * spec.kv_heads, dim)
        new = jnp.pad(new, pad).astype(cache.dtype)
        flat = cache.reshape(-1, *cache.shape[2:])
        cache = flat.at[plan].set(new).reshape(cache.shape)
        queries = jnp.pad(q.reshape(tokens, -1, dim), pad)
        out = ragged_paged_attention(
            queries,
            cache,
            batch.kv_lens,
            batch.pages,
            batch.q_starts,
            batch.num_seqs,
            sm_scale=spec.scale,
            sliding_window=spec.window,
            soft_cap=spec.softcap,
            # An int8 cache's true scales are folded into q and the output; 1.0 makes the kernel convert its type.
            k_scale=1.0 if cache.dtype == jnp.int8 else None,
            v_scale=1.0 if cache.dtype == jnp.int8 else None,
            # Given, since the kernel's own table asks the local device, which ahead-of-time compiling has none of.
            num_kv_pages_per_block=max(1, min(batch.pages.shape[1], 256 // spec.page_size)),
            num_queries_per_block=min(32, tokens),
        )
        return out[:, :, :dim].reshape(q.shape), cache
