"""Attention with the heads split over a mesh."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.llm.engine.attention import spans
from apps.llm.engine.attention.spec import FP8, QKV, AttentionBackend, AttentionSpec, KVScales, LayerCache
from apps.llm.engine.execute.step import Batch

FP8_MOST = float(jnp.finfo(FP8).max)


def attend(
    impl: AttentionBackend,
    new: QKV[jax.Array],
    cache: LayerCache,
    plan: Any,
    batch: Batch,
    spec: AttentionSpec,
    mesh: Mesh,
    scales: KVScales | None,
) -> tuple[jax.Array, LayerCache]:
    """Attention with heads split over the mesh; an int8 cache's scales are folded into q, k, v and the output."""
    q, k, v, sinks = new
    dtype = q.dtype
    if scales is not None:
        q = (q.astype(jnp.float32) * scales.k[:, None]).astype(dtype)
        k, v = (
            None if x is None else jnp.clip(jnp.round(x.astype(jnp.float32) / scale), -127, 127).astype(jnp.int8)
            for x, scale in ((k, scales.k), (v, scales.v))
        )
    elif jax.tree.leaves(cache)[0].dtype in (FP8, jnp.uint8):  # plain XLA keeps its bits
        # Beyond the largest number of this type there is no infinity.
        k, v = (None if x is None else jnp.clip(x, -FP8_MOST, FP8_MOST).astype(FP8) for x in (k, v))

    def local(new: QKV[jax.Array], cache: LayerCache, plan: Any, batch: Batch) -> tuple[jax.Array, LayerCache]:
        own = replace(spec, kv_heads=new.q.shape[1])
        out, cache = impl.attend(new, cache, plan, batch, own)
        if spec.both_ways and batch.spans is not None:
            out = spans.attended(impl, new.q, out, cache, batch, own)
        return out, cache

    if mesh.size > 1:
        heads = P(None, "tensor")
        written = None if k is None else heads
        split = QKV(heads, written, written, None if sinks is None else P("tensor"))
        local = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(split, impl.partition(), P(), P()),
            out_specs=(heads, impl.partition()),
            check_vma=False,
        )
    out, cache = local(QKV(q, k, v, sinks), cache, plan, batch)
    if scales is not None:
        out = (out.astype(jnp.float32) * scales.v[:, None]).astype(dtype)
    return out, cache
