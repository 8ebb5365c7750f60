"""Which kernels compute on a mesh's devices: device code calls them by these names, whatever the platform.

XLA computes what no kernel takes. Kernels import slowly, so each is imported where it is chosen.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from apps.arrays import quantization
from apps.arrays.quantization import LANES
from apps.llm.engine.attention.spec import FP8, AttentionBackend
from apps.llm.engine.attention.xla import XlaAttention

log = logging.getLogger("podslice")

TILE_ROWS = 32
"""Rows of a tile of a TPU's memory, in int8."""


def attention(
    name: Literal["auto", "xla", "pallas", "cpu"],
    mesh: Mesh,
    head_dims: Collection[int],
    page_size: int,
    sinks: bool = False,
    cache: jnp.dtype | None = None,
) -> AttentionBackend:
    """The implementation of that name; `auto` takes the platform's own, if it has one that fits the model.

    Falls back from the CPU kernels to plain XLA if the installed XLA has another foreign function interface.

    Args:
        head_dims: of all layers.
        cache: type of the cache; None: any that all of them have.

    Raises:
        ValueError: the one that was asked for does not fit the model.
    """
    platform = _platform(mesh)
    if name == "pallas" or (name == "auto" and platform == "tpu"):
        from apps.llm.engine.attention.pallas import PallasAttention, has_sinks

        if not sinks or all(map(has_sinks, head_dims)):
            return PallasAttention(mesh.shape["tensor"], platform == "tpu")
        why = f"heads of {max(head_dims)} channels leave no room for attention sinks in the kernel"
        if name == "pallas":
            raise ValueError(f"attention 'pallas' does not fit this model: {why}; use 'auto' or 'xla'")
        log.warning("%s: plain XLA computes attention; expect it slow", why)
    if name == "cpu" and cache == FP8:
        raise ValueError("attention 'cpu' has no FP8 cache: use 'auto' or 'xla', or quantize_kv_cache int8")
    whole = all(size % 16 == 0 for size in (page_size, *head_dims)) and cache != FP8
    if name == "cpu" or (name == "auto" and platform == "cpu" and whole):
        from apps.llm.engine.cpu.attention import CpuAttention
        from apps.llm.engine.cpu.ffi import usable

        if usable():
            return CpuAttention()
    return XlaAttention()


def multiplied(x: jax.Array, values: jax.Array, mesh: Mesh, num_rows: jax.Array | None = None) -> jax.Array:
    """`[tokens, in]` times `[out, in]` -> `[tokens, out]` float32.

    Args:
        num_rows: `[1]`, the rows that are wanted, the first ones: the others may be 0. Default: all.
    """
    if _is_one_cpu(mesh):
        from apps.llm.engine.cpu import products

        if products.takes(x, values):
            return products.product(x, values, num_rows)
    return quantization.multiplied(x, values)


def register(targets: Iterable[str]) -> None:
    """Register the CPU's kernels of these names, for programs that were compiled in another process.

    Raises:
        ValueError: there is no such kernel, or none can be used here.
    """
    from apps.llm.engine.cpu import attention_calls, products
    from apps.llm.engine.cpu.ffi import usable

    registers = products.TARGETS | attention_calls.TARGETS
    for target in targets:
        if target not in registers or not usable():
            raise ValueError(f"this Podslice has no kernel {target} for this CPU and jaxlib")
        registers[target]()


def skips_padding(meshes: list[Mesh], dtype: jnp.dtype, int8_weights: bool) -> bool:
    """Whether `multiplied` of that type takes no time for rows past `num_rows`, on each of these meshes."""
    if not all(map(_is_one_cpu, meshes)):
        return False
    from apps.llm.engine.cpu import products

    return products.always_takes(dtype, jnp.dtype(jnp.int8) if int8_weights else dtype)


def experts(mesh: Mesh, hidden: int, width: int) -> Callable[..., jax.Array] | None:
    """The kernel that computes experts of that width on each device; None: XLA does."""
    whole = all(size % TILE_ROWS == 0 and size >= LANES for size in (hidden, width))
    if not whole or _platform(mesh) != "tpu":
        return None
    from apps.llm.engine.model.experts.kernel import feed_forward

    return feed_forward


def one_token(mesh: Mesh, key_dim: int, value_dim: int) -> Callable[..., tuple[jax.Array, jax.Array]] | None:
    """The kernel for one token of each sequence in linear attention with heads of that size; None: XLA computes it."""
    if _platform(mesh) != "tpu":
        return None
    from apps.llm.engine.model.mixers import delta_kernel

    return delta_kernel.one_token if delta_kernel.takes(key_dim, value_dim) else None


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def _is_one_cpu(mesh: Mesh) -> bool:
    return mesh.size == 1 and _platform(mesh) == "cpu"
