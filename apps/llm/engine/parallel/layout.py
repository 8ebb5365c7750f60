"""How a replica's devices share a model: DP ranks, copies of it ("data"), each split over some devices ("tensor").

More devices for each rank: each reads fewer weights in a step. More ranks: each exchanges less with the others, and
where a model has fewer key/value heads than devices, fewer of them hold the same keys and values twice. Which weighs
more follows from the model, its batch and the slice.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from apps.llm.engine.attention.spec import AttentionSpec
from apps.llm.engine.model import params
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.params import HeadLayout, Param
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks

log = logging.getLogger("podslice")


@dataclass(frozen=True)
class Layout:
    """`data` DP ranks, copies of the model, each over `tensor` devices."""

    data: int
    tensor: int

    def of_dp_rank(self, config: EngineConfig) -> EngineConfig:
        """The config of one DP rank: its share of the batch, and its devices."""
        share = -(-config.max_batch_size // self.data)
        return config.model_copy(update={"max_batch_size": share, "data_parallel": 1, "tensor_parallel": self.tensor})

    def hosts_of(self, dp_rank: int, devices: "Devices") -> range:
        """The hosts, by rank, that hold a DP rank's devices."""
        return range(dp_rank * self.tensor // devices.of_host, -(-(dp_rank + 1) * self.tensor // devices.of_host))


@dataclass(frozen=True)
class Devices:
    """What there is to lay a model over."""

    count: int
    hosts: int = 1
    platform: str = "tpu"

    @property
    def of_host(self) -> int:
        return self.count // self.hosts


def choose(config: EngineConfig, arch: Architecture, devices: Devices, slice: TpuSlice | None) -> Layout:
    """The layout that the config asks for; where it leaves it open, on a slice the best (see `shortest_step`).

    Without a slice to reckon with, a model is split over all devices of an accelerator, and over one of a CPU.

    Raises:
        ValueError: what the config asks for does not fit the devices.
    """
    data, tensor = config.data_parallel, config.tensor_parallel
    if data is None and tensor is None and slice is not None:
        return shortest_step(config, arch, devices, slice)
    if tensor is None:
        # By what a DP rank can use: on a CPU, one of its pretended devices.
        tensor = devices.count // (data or 1) if slice or devices.hosts > 1 or devices.platform != "cpu" else 1
    if data is None:
        # All hosts must take part; of one host, the devices of a slice that was paid for.
        data = max(1, devices.count // tensor) if slice or devices.hosts > 1 else 1
    layout = Layout(data, tensor)
    if problem := misfit(layout, devices):
        raise ValueError(problem)
    return layout


def misfit(layout: Layout, devices: Devices) -> str:
    """Why the devices cannot be shared so; empty: they can."""
    asked = layout.data * layout.tensor
    product = f"data_parallel x tensor_parallel is {layout.data} x {layout.tensor} = {asked}"
    if devices.hosts > 1 and asked != devices.count:
        return (
            f"{product}, but the slice has {devices.count} devices on {devices.hosts} hosts, and each of them "
            "must take part; leave either or both unset"
        )
    if asked > devices.count:
        return f"{product}, but this host has {devices.count} {devices.platform} devices"
    if layout.tensor % devices.of_host and devices.of_host % layout.tensor:
        return (
            f"tensor_parallel {layout.tensor} splits hosts: each has {devices.of_host} devices, and a DP rank takes "
            "whole hosts, or an even part of one"
        )
    return ""


def possible(arch: Architecture, devices: Devices) -> Iterator[Layout]:
    """Those that use every device, fewest DP ranks first."""
    for data in range(1, devices.count + 1):
        if devices.count % data:
            continue
        layout = Layout(data, devices.count // data)
        try:
            HeadLayout.of(arch, layout.tensor)
        except ValueError:
            continue
        if not misfit(layout, devices):
            yield layout


def shortest_step(config: EngineConfig, arch: Architecture, devices: Devices, slice: TpuSlice) -> Layout:
    """The layout whose decode step, of a full batch of longest sequences, is shortest by the slice's peak figures.

    Of those that hold such a batch; if none does, the one that leaves most room.

    Raises:
        ValueError: the model does not split over the devices in any way; says how it does.
    """
    layouts = list(possible(arch, devices))
    if not layouts:
        HeadLayout.of(arch, devices.count)  # says what fits
        raise ValueError(f"the model cannot be split over {slice}: choose a slice of another size")
    costs = {layout: Cost.of(config, arch, layout, devices, slice) for layout in layouts}
    holding = [layout for layout in layouts if costs[layout].share_of_hbm <= 1]
    if not holding:
        return min(layouts, key=lambda layout: costs[layout].share_of_hbm)
    best = min(holding, key=lambda layout: costs[layout].step_s)
    if best.data > 1:
        log.info("%d DP ranks, each over %d devices", best.data, best.tensor)
    return best


@dataclass(frozen=True)
class Cost:
    """Of a layout's decode step: a floor from the slice's peaks, not a measured time. Comparing is what it is for."""

    step_s: float
    share_of_hbm: float
    """That weights and a full batch's KV cache need."""

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture, layout: Layout, devices: Devices, slice: TpuSlice) -> "Cost":
        peaks = Peaks.of(slice, devices.count)
        share, context = layout.of_dp_rank(config), config.max_model_len or arch.max_position
        weights = DeviceWeights.of(share, arch, layout.tensor)
        cache = share.max_batch_size * context * token_bytes(share, arch, layout.tensor)
        compute = 2 * weights.elements * share.max_batch_size / peaks.flops_per_s
        # Each layer adds up two of its products over the rank's devices, by rings.
        summed = 2 * arch.num_layers * share.max_batch_size * arch.hidden_size * 2
        exchange = summed * 2 * (layout.tensor - 1) / layout.tensor / peaks.ici_bytes_per_s
        hbm = slice.hbm_gib * 2**30 / devices.count
        return cls(
            step_s=max((weights.read + cache) / peaks.hbm_bytes_per_s, compute) + exchange,
            share_of_hbm=(weights.stored + cache / config.memory_fraction) / hbm,
        )


class DeviceWeights(NamedTuple):
    """On each device of a DP rank."""

    stored: int  # bytes
    read: int  # of them, by a decode step: not a table that is only looked up in
    elements: int  # of the matrices

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture, tensor: int) -> "DeviceWeights":
        mesh = AbstractMesh((tensor,), ("tensor",))
        declared = params.declare(arch, HeadLayout.of(arch, tensor))
        looked_up = None if arch.tied_embeddings else declared["embed"]
        stored = read = elements = 0
        for param in jax.tree.leaves(declared, is_leaf=lambda leaf: isinstance(leaf, Param)):
            own = math.prod(param.shape) // math.prod(mesh.shape[axis] for axis in param.spec(mesh) if axis)
            int8 = param.matrix and config.quantize_weights == "int8"
            size = own * (1 if int8 else param.dtype(jnp.dtype(config.dtype)).itemsize)
            stored += size
            if param is not looked_up:
                read += size
                elements += own if param.matrix else 0
        return cls(stored, read, elements)


def token_bytes(config: EngineConfig, arch: Architecture, tensor: int) -> float:
    """Bytes of one token's keys and values, all layers', on each device of a rank, as the TPU kernel lays them out."""
    from apps.llm.engine.attention.pallas import PallasAttention  # its imports take a while: not where no one asks

    spec = AttentionSpec(HeadLayout.of(arch, tensor).kv_heads, 1, arch.head_dim, config.page_size, 1.0)
    dtype = jnp.dtype(jnp.int8 if config.quantize_kv_cache == "int8" else config.dtype)
    page = jax.tree.leaves(PallasAttention(tensor, on_tpu=True).cache(spec, 1, dtype))
    return sum(part.size * part.dtype.itemsize for part in page) * arch.num_layers / config.page_size / tensor
