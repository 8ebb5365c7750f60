"""What a step reads and computes of a mixture of experts.

The compiler cannot know: that depends on what the tokens pick. Here they pick at random, each expert equally often or,
as `popularity` says, some more often than others.
"""

import math
from dataclasses import dataclass
from functools import cache

import jax
import numpy as np

from apps.llm.engine import kernels
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.experts.mixture import block_of
from apps.llm.engine.model.layers import Experts
from apps.plan.llm.report import ExpertsReport
from apps.plan.measured import KernelCost

DRAWS = 400
TOKENS_DRAWN = 4000
UNEVEN = 0.5
"""Skew of a router that does not pick all equally often: of 128 experts, 8 a token, it picks the first 5 times as often
as the average, and the last 20 half as often."""


@dataclass(frozen=True)
class Load:
    """Of one layer in a step. Means over draws."""

    read: float
    """Share of the experts that some token picks."""
    busiest: float
    """Experts that some token picks on the device that has most of them, which the others wait for."""
    blocks: float
    """Blocks of tokens of one expert on the busiest device."""
    even_blocks: float
    """The same on the average device."""
    uneven: float
    """Tokens on the busiest device over those on the average device."""


@dataclass(frozen=True)
class ExpertsLoops:
    """Cycles of the parts of the experts' kernel; see `bundles`."""

    layer: int
    """What runs once."""
    tile: int
    """A tile of an expert, without what is inside the loop over its blocks of tokens."""
    block: int
    """A block of tokens in a tile."""
    rows: int
    """A block of tokens, once for all tiles: gathering them, and adding them to the result."""


@cache
def popularity(experts: Experts, skew: float) -> np.ndarray:
    """How likely a token picks each expert, the most popular first.

    A token wants the r-th in proportion to r ** -skew, and picks without replacement.
    """
    if skew == 0:
        return np.full(experts.count, experts.per_token / experts.count)
    wanted = -skew * np.log(np.arange(1, experts.count + 1))
    drawn = wanted + np.random.default_rng(0).gumbel(size=(TOKENS_DRAWN, experts.count))
    picked = np.argpartition(-drawn, experts.per_token - 1, axis=1)[:, : experts.per_token]
    return np.bincount(picked.ravel(), minlength=experts.count) / TOKENS_DRAWN


@cache
def load(experts: Experts, tokens: int, groups: int, block: int | None = None, skew: float = 0.0) -> Load:
    """For a step of `tokens` tokens with the experts split over `groups` of devices, by draws from a fixed seed.

    Args:
        block: tokens of one product; default: that of XLA's loop.
        skew: see `popularity`. Which device has the popular experts is drawn too.
    """
    # A token picks an expert once at most, so that an expert's tokens are binomial. That they add up is left out.
    random = np.random.default_rng(0)
    likely = random.permuted(np.tile(popularity(experts, skew), (DRAWS, 1)), axis=1)
    picked = random.binomial(tokens, np.minimum(likely, 1)).reshape(DRAWS, groups, -1)
    blocks = (-(-picked // (block or block_of(tokens, experts)))).sum(axis=2)
    read, on_device = (picked > 0).sum(axis=2), picked.sum(axis=2)
    return Load(
        read=float((picked > 0).mean()),
        busiest=float(read.max(axis=1).mean()),
        blocks=float(blocks.max(axis=1).mean()),
        even_blocks=float(blocks.mean()),
        uneven=float(on_device.max(axis=1).mean() / on_device.mean()),
    )


def batch_of_all(experts: Experts) -> int:
    """Tokens from which a step reads more than 99 of 100 experts."""
    return math.ceil(math.log(0.01) / math.log1p(-experts.per_token / experts.count))


def block_flops(decoder: Decoder, experts: Experts, tokens: int) -> float:
    """Operations of one turn of XLA's loop."""
    return 2 * block_of(tokens, experts) * 3 * decoder.arch.hidden_size * width(decoder)


def weights(arch: Architecture, experts: Experts, devices: int, itemsize: int) -> float:
    """Bytes of all layers' experts on each device."""
    return len(arch.layers_of_experts) * experts.count / devices * 3 * arch.hidden_size * experts.width * itemsize


def report(decoder: Decoder, tokens: int) -> ExpertsReport | None:
    """Of a decode step of `tokens` sequences."""
    arch, experts, devices = decoder.arch, decoder.arch.experts, decoder.mesh.size
    if experts is None:
        return None
    even, uneven = (load(experts, tokens, decoder.split.expert_groups, skew=skew) for skew in (0.0, UNEVEN))
    summed = len(arch.layers_of_experts) * tokens * arch.hidden_size * decoder.dtype.itemsize
    return ExpertsReport(
        tokens=tokens,
        count=experts.count,
        per_token=experts.per_token,
        groups=decoder.split.expert_groups,
        read=even.read,
        busiest=even.uneven,
        uneven_read=uneven.read,
        uneven_busiest=uneven.uneven,
        batch_of_all=batch_of_all(experts),
        ici_bytes=summed * 2 * (devices - 1) / devices,  # by rings
    )


def in_kernel(decoder: Decoder) -> Experts | None:
    """The model's experts, if a kernel computes them."""
    experts, sizes = decoder.arch.experts, (decoder.arch.hidden_size, width(decoder))
    return experts if experts and kernels.experts(decoder.mesh, *sizes) else None


def width(decoder: Decoder) -> int:
    """What each device has of an expert's width."""
    return decoder.arch.experts.width // decoder.split.expert_parts if decoder.arch.experts else 0


def kernel(decoder: Decoder, int8: bool, tokens: int, loops: ExpertsLoops | None) -> KernelCost:
    """The cost of the experts' kernel on the busiest device in a step; zero where there is none.

    Its weights are read once. Of blocks of tokens, whole ones are computed.
    """
    experts, hidden, own = in_kernel(decoder), decoder.arch.hidden_size, width(decoder)
    if experts is None:
        return KernelCost(0, 0, 0, 0)
    from apps.llm.engine.model.experts import kernel as experts_kernel

    itemsize, layers = 1 if int8 else decoder.dtype.itemsize, len(decoder.arch.layers_of_experts)
    with jax.sharding.use_abstract_mesh(decoder.mesh.abstract_mesh):
        chip = experts_kernel.Chip.here()
    each = min(tokens, chip.most_tokens(hidden, decoder.dtype))
    parts = tokens / each
    tiles = -(-own // experts_kernel.tile_of(hidden, own, itemsize))
    block = experts_kernel.block_of(each, experts)
    busy = load(experts, each, decoder.split.expert_groups, block)
    read = busy.busiest * 3 * hidden * own * itemsize + 2 * each * hidden * decoder.dtype.itemsize
    moved = 4 * block * each * hidden if each > block else 0
    flops = busy.blocks * (6 * block * hidden * own + moved)
    cycles = 0.0
    if loops is not None:
        of_experts = busy.busiest * tiles * loops.tile + busy.blocks * (tiles * loops.block + loops.rows)
        cycles = loops.layer + of_experts / chip.cores
    useful = 6 * tokens * experts.per_token / decoder.mesh.size * hidden * experts.width
    return KernelCost(read * parts * layers, flops * parts * layers, useful * layers, cycles * parts * layers)
