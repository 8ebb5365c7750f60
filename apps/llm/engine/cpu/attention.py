"""Attention on CPUs: native kernels over the paged cache, compiled by Numba and called from XLA programs.

Here this is one loop over a page that stays in the core's cache; XLA:CPU would make a dozen passes over memory. Keys
are stored transposed within a page, `[head_dim, page_size]`, so that both products run along contiguous vectors.

Each query row goes through its pages in order and independently of other rows, so its result is the same to the bit
whatever else is in the step, and however the prompt was split into chunks.
"""

import math
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from apps.arrays.quantization import Leaf
from apps.llm.engine.attention.spec import QKV, AttentionSpec, slots
from apps.llm.engine.cpu.attention_calls import register
from apps.llm.engine.cpu.attention_kernels import LOWEST
from apps.llm.engine.execute.step import Batch


class CpuCache(NamedTuple, Generic[Leaf]):
    """One layer's pages; bfloat16 is stored as its bits, in uint16."""

    k: Leaf  # [pages, kv_heads, head_dim, page_size]
    v: Leaf  # [pages, kv_heads, page_size, head_dim]


KINDS = {jnp.dtype(jnp.uint16): "bf16", jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.int8): "int8"}


class CpuAttention:
    """The implementation for the CPU platform."""

    def cache(self, spec: AttentionSpec, pages: int, dtype: jnp.dtype) -> CpuCache[jax.ShapeDtypeStruct]:
        stored = jnp.dtype(jnp.uint16 if dtype == jnp.bfloat16 else dtype)
        register(KINDS[stored])
        return CpuCache(
            jax.ShapeDtypeStruct((pages, spec.kv_heads, spec.head_dim, spec.page_size), stored),
            jax.ShapeDtypeStruct((pages, spec.kv_heads, spec.page_size, spec.head_dim), stored),
        )

    def partition(self) -> CpuCache[P]:
        heads = P(None, "tensor", None, None)
        return CpuCache(heads, heads)

    def plan(self, batch: Batch, spec: AttentionSpec) -> jax.Array:
        return slots(batch, spec.page_size)[0]

    def attend(
        self, new: QKV[jax.Array], cache: CpuCache[jax.Array], plan: jax.Array, batch: Batch, spec: AttentionSpec
    ) -> tuple[jax.Array, CpuCache[jax.Array]]:
        q, k, v, sinks = new
        name = KINDS[cache.k.dtype]
        if k is not None and v is not None:
            if name == "bf16":
                k, v = (jax.lax.bitcast_convert_type(x, jnp.uint16) for x in (k, v))
            like = CpuCache(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in cache))
            write = jax.ffi.ffi_call(f"podslice_write_{name}", like, input_output_aliases={0: 0, 1: 1})
            cache = CpuCache(*write(*cache, k, v, plan))
        queries = q.astype(jnp.float32) * (spec.scale * math.log2(math.e))
        result = jax.ShapeDtypeStruct(q.shape, jnp.float32)
        attend = jax.ffi.ffi_call(f"podslice_attend_{name}", result)
        cap = (spec.softcap or 0.0) * math.log2(math.e)
        window = np.array([spec.window or 0], np.int32)
        # A model without sinks has one that weighs nothing.
        sinks = jnp.full(q.shape[1:3], LOWEST) if sinks is None else sinks * math.log2(math.e)
        limits = window, np.array([cap], np.float32), sinks.reshape(-1)
        out = attend(queries, *cache, batch.q_starts, batch.kv_lens, batch.pages, *limits)
        # The kernels do not write the rows of padding.
        real = jnp.arange(len(q)) < batch.q_starts[-1]
        return jnp.where(real[:, None, None, None], out, 0.0).astype(q.dtype), cache

    def read(
        self, cache: CpuCache[jax.Array], pages: jax.Array, spec: AttentionSpec, dtype: jnp.dtype
    ) -> tuple[jax.Array, jax.Array]:
        shape = -1, spec.kv_heads, spec.head_dim
        k, v = cache.k[pages].transpose(0, 3, 1, 2).reshape(shape), cache.v[pages].swapaxes(1, 2).reshape(shape)
        if k.dtype == jnp.uint16:
            k, v = (jax.lax.bitcast_convert_type(x, jnp.bfloat16) for x in (k, v))
        return k.astype(dtype), v.astype(dtype)
