"""Chooses the attention implementation for a platform, and imports only that one because kernels import slowly."""

import logging
from collections.abc import Collection
from typing import Literal

import jax.numpy as jnp
from jax.sharding import Mesh

from apps.llm.engine.attention.spec import FP8, AttentionBackend
from apps.llm.engine.attention.xla import XlaAttention

log = logging.getLogger("podslice")


def implementation(
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
    platform = mesh.devices.flat[0].platform
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
        from apps.llm.engine.attention.cpu import CpuAttention
        from apps.llm.engine.cpu.ffi import usable

        if usable():
            return CpuAttention()
    return XlaAttention()
