"""The interface of an attention implementation."""

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from apps.arrays.quantization import Leaf
from apps.llm.engine.execute.step import Batch
from ray_configs.llm import EngineConfig

LayerCache = Any  # one layer's pages, as its implementation lays them out


class QKV(NamedTuple, Generic[Leaf]):
    """What a step adds, after rotary embedding."""

    q: Leaf  # [T, kv_heads, group, head_dim]
    k: Leaf | None  # [T, kv_heads, head_dim]; None: another layer has written them to the cache
    v: Leaf | None  # like k
    sinks: Leaf | None = None  # [kv_heads, group] float32: score of a key without a value that each query sees


class KVScales(NamedTuple):
    """Scales of an int8 cache's values, per key/value head and channel: `[kv_heads, head_dim]` float32."""

    k: jax.Array
    v: jax.Array


@dataclass(frozen=True)
class AttentionSpec:
    """The static parameters of one layer's attention."""

    kv_heads: int
    group: int  # query heads for each key/value head
    head_dim: int
    page_size: int
    scale: float  # multiplies q @ k
    softcap: float | None = None
    window: int | None = None  # sliding window, in positions, the token itself included; None: full attention
    both_ways: bool = False  # an image's tokens attend to all of it: `spans` sees to it


FP8 = jnp.dtype(jnp.float8_e4m3fn)


def cache_dtype(config: EngineConfig) -> jnp.dtype:
    """The type of the KV cache's numbers."""
    quantized = {"int8": jnp.dtype(jnp.int8), "fp8": FP8}
    return quantized.get(config.quantize_kv_cache, jnp.dtype(config.dtype))


class AttentionBackend(Protocol):
    def cache(self, spec: AttentionSpec, pages: int, dtype: jnp.dtype) -> LayerCache:
        """The shapes of one layer's empty cache."""

    def partition(self) -> Any:
        """How a LayerCache is split over the mesh: PartitionSpecs."""

    def plan(self, batch: Batch, spec: AttentionSpec) -> Any:
        """What all layers of a kind share in a step, computed once."""

    def attend(
        self, new: QKV[jax.Array], cache: LayerCache, plan: Any, batch: Batch, spec: AttentionSpec
    ) -> tuple[jax.Array, LayerCache]:
        """The attention output, of q's shape, and the cache with the step's keys and values."""

    def read(
        self, cache: LayerCache, pages: jax.Array, spec: AttentionSpec, dtype: jnp.dtype
    ) -> tuple[jax.Array, jax.Array]:
        """Keys and values of some pages, as they are in the cache: each `[pages * page_size, kv_heads, head_dim]`."""


def slots(batch: Batch, page_size: int) -> tuple[jax.Array, jax.Array]:
    """The flat cache slot that each token's key and value go to, `[T]`, and its position, `[T]`.

    Padding goes to page 0, which no sequence owns.
    """
    seq = batch.sequence_of_token()
    t = jnp.arange(batch.tokens.shape[0])
    position = batch.kv_lens[seq] - batch.q_starts[seq + 1] + t
    page = batch.pages[seq, jnp.clip(position // page_size, 0, batch.pages.shape[1] - 1)]
    real = t < batch.q_starts[-1]
    return jnp.where(real, page * page_size + position % page_size, 0), jnp.where(real, position, 0)
