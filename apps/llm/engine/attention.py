"""Attention over the paged KV cache: write the step's keys and values, then let each token look back.

Three implementations of one function, tested against each other: Pallas' ragged paged attention kernel on TPU, native
kernels on CPU, and plain XLA elsewhere. Each owns the layout of its cache; the rest of the engine knows only
page numbers.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.engine.step import Batch

LayerCache = Any  # one layer's pages, as its implementation lays them out


class KVScales(NamedTuple):
    """What an int8 cache's values are multiplied by, per key/value head and channel: `[kv_heads, head_dim]` float32."""

    k: jax.Array
    v: jax.Array


@dataclass(frozen=True)
class AttentionSpec:
    """One layer's attention, static."""

    kv_heads: int
    group: int  # query heads for each key/value head
    head_dim: int
    page_size: int
    scale: float  # multiplies q @ k
    softcap: float | None = None
    window: int | None = None  # how many last positions a token sees, itself included


class Implementation(Protocol):
    """`q [T, kv_heads, group, head_dim]`, `k` and `v [T, kv_heads, head_dim]`, all after rotary embedding."""

    def cache(self, spec: AttentionSpec, pages: int, dtype: jnp.dtype) -> LayerCache:
        """The shapes of one layer's empty cache."""

    def partition(self) -> Any:
        """How a LayerCache is split over the mesh: PartitionSpecs."""

    def plan(self, batch: Batch, spec: AttentionSpec) -> Any:
        """What all layers of a kind share in a step, computed once."""

    def attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, cache: LayerCache, plan: Any, batch: Batch, spec: AttentionSpec
    ) -> tuple[jax.Array, LayerCache]:
        """The attention's output, like q, and the cache with the step's keys and values in it."""


def implementation(
    name: Literal["auto", "xla", "pallas", "cpu"], mesh: Mesh, head_dim: int, page_size: int
) -> Implementation:
    """The implementation of that name; `auto` takes the platform's own, where it has one that fits the model."""
    platform = mesh.devices.flat[0].platform
    if name == "pallas" or (name == "auto" and platform == "tpu"):
        from apps.llm.engine.attention_pallas import PallasAttention

        return PallasAttention(mesh.shape["tensor"], platform == "tpu")
    if name == "cpu" or (name == "auto" and platform == "cpu" and head_dim % 16 == 0 and page_size % 16 == 0):
        from apps.llm.engine.attention_cpu import CpuAttention

        return CpuAttention()
    from apps.llm.engine.attention_xla import XlaAttention

    return XlaAttention()


def slots(batch: Batch, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Where each token's key and value go, `[T]` flat cache slots, and its position, `[T]`.

    Padding goes to page 0, which no sequence owns.
    """
    seq = batch.sequence_of_token()
    t = jnp.arange(batch.tokens.shape[0])
    position = batch.kv_lens[seq] - batch.q_starts[seq + 1] + t
    page = batch.pages[seq, jnp.clip(position // page_size, 0, batch.pages.shape[1] - 1)]
    real = t < batch.q_starts[-1]
    return jnp.where(real, page * page_size + position % page_size, 0), jnp.where(real, position, 0)


def make_cache(
    impl: Implementation, spec: AttentionSpec, layers: int, pages: int, dtype: jnp.dtype, mesh: Mesh
) -> list[LayerCache]:
    """Empty pages of all layers, on their devices."""
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), impl.partition())
    shapes = impl.cache(spec, pages, dtype)

    def zeros() -> LayerCache:
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    make = jax.jit(zeros, out_shardings=shardings)
    return [make() for _ in range(layers)]


def attend(
    impl: Implementation,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cache: LayerCache,
    plan: Any,
    batch: Batch,
    spec: AttentionSpec,
    mesh: Mesh,
    scales: KVScales | None,
) -> tuple[jax.Array, LayerCache]:
    """Attention with heads split over the mesh; an int8 cache's scales are folded into q, k, v and the output."""
    dtype = q.dtype
    if scales is not None:
        q = (q.astype(jnp.float32) * scales.k[:, None]).astype(dtype)
        k, v = (
            jnp.clip(jnp.round(x.astype(jnp.float32) / scale), -127, 127).astype(jnp.int8)
            for x, scale in ((k, scales.k), (v, scales.v))
        )

    def local(q, k, v, cache, plan, batch):
        here = AttentionSpec(**{**spec.__dict__, "kv_heads": k.shape[1]})
        return impl.attend(q, k, v, cache, plan, batch, here)

    if mesh.size > 1:
        heads, everywhere = P(None, "tensor"), P()
        local = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(heads, heads, heads, impl.partition(), everywhere, everywhere),
            out_specs=(heads, impl.partition()),
            check_vma=False,
        )
    out, cache = local(q, k, v, cache, plan, batch)
    if scales is not None:
        out = (out.astype(jnp.float32) * scales.v[:, None]).astype(dtype)
    return out, cache
