"""Chooses how a replica's devices share a model, by what each layout's decode step costs at least."""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from apps.arrays.layout import Devices, Layout, misfit
from apps.llm.engine.attention.spec import cache_dtype
from apps.llm.engine.model import params
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.mixers.choice import mixer_of
from apps.llm.engine.model.mixers.interface import Capacity
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks

log = logging.getLogger("podslice")


def choose(config: EngineConfig, arch: Architecture, devices: Devices, slice: TpuSlice | None) -> Layout:
    """The layout that the config asks for. If it leaves the layout open, the best one on a slice: see `shortest_step`.

    Without a slice, a model is split over all devices of an accelerator, or runs on one CPU device.

    Raises:
        ValueError: the config's layout does not fit the devices.
    """
    data, tensor = config.data_parallel, config.tensor_parallel
    if data is None and tensor is None and slice is not None:
        return shortest_step(config, arch, devices, slice)
    if tensor is None:
        # As many as a DP rank can use: on a CPU, one of its emulated devices.
        tensor = devices.count // (data or 1) if slice or devices.hosts > 1 or devices.platform != "cpu" else 1
    if data is None:
        # On several hosts all must take part; on one host, use all devices of a slice, since they are paid for.
        data = max(1, devices.count // tensor) if slice or devices.hosts > 1 else 1
    layout = Layout(data, tensor)
    if problem := misfit(layout, devices):
        raise ValueError(problem)
    return layout


def possible(arch: Architecture, devices: Devices, expert_parallel: int | None = None) -> Iterator[Layout]:
    """The layouts that use every device, fewest DP ranks first."""
    for data in range(1, devices.count + 1):
        if devices.count % data:
            continue
        layout = Layout(data, devices.count // data)
        try:
            arch.split(layout.tensor, expert_parallel)
        except ValueError:
            continue
        if not misfit(layout, devices):
            yield layout


def shortest_step(config: EngineConfig, arch: Architecture, devices: Devices, slice: TpuSlice) -> Layout:
    """The layout with the shortest decode step of a full batch of longest sequences, by the slice's peak figures.

    Considers layouts that can hold such a batch; if none can, takes the one that leaves the most memory.

    Raises:
        ValueError: the model cannot be split over these devices; says which splits are possible.
    """
    layouts = list(possible(arch, devices, config.expert_parallel))
    if not layouts:
        arch.split(devices.count, config.expert_parallel)  # raises an error that says which splits fit
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
    """Cost of a layout's decode step: a lower bound from the slice's peaks, for comparing layouts; not measured."""

    step_s: float
    share_of_hbm: float
    """Part of HBM that the weights and a full batch's KV cache need."""

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture, layout: Layout, devices: Devices, slice: TpuSlice) -> "Cost":
        peaks = Peaks.of(slice, devices.count)
        share, context = layout.of_dp_rank(config), config.max_model_len or arch.max_position
        weights = DeviceWeights.of(share, arch, layout.tensor)
        cache = share.max_batch_size * context * token_bytes(share, arch, layout.tensor)
        compute = 2 * weights.elements * share.max_batch_size / peaks.flops_per_s
        # Each layer all-reduces two of its products over the rank's devices, by rings.
        summed = 2 * arch.num_layers * share.max_batch_size * arch.hidden_size * 2
        exchange = summed * 2 * (layout.tensor - 1) / layout.tensor / peaks.ici_bytes_per_s
        hbm = slice.hbm_gib * 2**30 / devices.count
        return cls(
            step_s=max((weights.read + cache) / peaks.hbm_bytes_per_s, compute) + exchange,
            share_of_hbm=(weights.stored + cache / config.memory_fraction) / hbm,
        )


class DeviceWeights(NamedTuple):
    """Weights on each device of a DP rank."""

    stored: int  # bytes
    read: int  # bytes that a decode step reads: without a table used only for lookups
    elements: int  # of the matrices

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture, tensor: int) -> "DeviceWeights":
        mesh = AbstractMesh((tensor,), ("tensor",))
        declared = declare(arch, arch.split(tensor, config.expert_parallel))
        looked_up = [declared.get("extra_embed"), None if arch.tied_embeddings else declared["embed"]]
        stored = read = elements = 0
        for param in jax.tree.leaves(declared, is_leaf=params.is_param):
            own = math.prod(param.shape) // math.prod(mesh.shape[axis] for axis in param.spec(mesh) if axis)
            int8 = param.matrix and config.quantize_weights == "int8"
            size = own * (1 if int8 else param.dtype(jnp.dtype(config.dtype)).itemsize)
            stored += size
            if not any(param is table for table in looked_up):
                read += size
                elements += own if param.matrix else 0
        return cls(stored, read, elements)


def token_bytes(config: EngineConfig, arch: Architecture, tensor: int) -> float:
    """Bytes of one token's state in all layers' pages, on each device of a rank, in the TPU kernel's layout."""
    from apps.llm.engine.attention.pallas import PallasAttention  # imports slowly: only when needed

    impl, split = PallasAttention(tensor, on_tpu=True), arch.split(tensor)
    room, total = Capacity(pages=1, page_size=config.page_size, slots=1, dtype=cache_dtype(config)), 0
    for mixer, layers in Counter(spec.mixer.form for spec in arch.layers).items():
        state = mixer_of(mixer, arch.hidden_size, split).state(impl, room)
        if state is not None and state.held_by == "pages":
            total += sum(form.size * form.dtype.itemsize for form in jax.tree.leaves(state.arrays)) * layers
    return total / config.page_size / tensor
