"""Analytic cost of the attention kernel: bytes moved, operations, and cycles where its loops' are known.

A Pallas call is opaque to the compiler's cost analysis, and jax's ragged paged attention gives it no cost_estimate: it
cannot, since the work depends on the sequences' lengths at run time. The counts here follow the kernel's loops
(jax/experimental/pallas/ops/tpu/ragged_paged_attention/kernel.py, jax 0.10): for each block of query tokens, each
sequence in it, all the sequence's pages, a block at a time; masked rows and positions are computed too, and a sliding
window masks but does not skip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from apps.llm.engine.attention.pallas import PallasAttention, blocks, padded
from apps.llm.engine.attention.spec import LayerCache
from apps.llm.engine.model.decoder import Decoder
from apps.plan.measured import KernelCost


@dataclass(frozen=True)
class Loops:
    """Cycles of one pass through each of the kernel's loops, without what is inside it: see `bundles`."""

    queries: int
    """A block of query tokens."""
    sequence: int
    """A sequence in it."""
    positions: int
    """A block of its positions."""


def attention(
    decoder: Decoder, cache: LayerCache, sequences: Sequence[tuple[int, int]], max_pages: int, loops: Loops | None
) -> KernelCost:
    """The kernel's cost for `sequences`, each (tokens in this step, tokens in the KV cache after it).

    Zero where the attention is plain XLA, which the compiler counts itself.

    Args:
        cache: shapes of one layer's, all devices together, each `[pages, page_size, 2 * kv_heads, head_dim]`.
        max_pages: of the longest sequence that the step can have.
    """
    if not isinstance(decoder.impl, PallasAttention):
        return KernelCost(0, 0, 0, 0)
    arch, devices = decoder.arch, decoder.heads.devices
    parts = jax.tree.leaves(cache)
    page, dim, item = parts[0].shape[1], parts[0].shape[3], parts[0].dtype.itemsize
    rows, kv_heads = sum(part.shape[2] for part in parts) // devices, decoder.heads.kv_heads // devices
    queries, executed_queries = kv_heads * decoder.heads.group, rows // 2 * decoder.heads.group
    total = sum(tokens for tokens, _ in sequences)
    block = blocks(total, len(sequences), page, max_pages)
    read = flops = useful = start = visits = tiles = 0
    for tokens, length in sequences:
        visited = (start + tokens - 1) // block.queries - start // block.queries + 1
        pages, deep = -(-length // page), -(-length // block.positions)
        visits, tiles = visits + visited, tiles + visited * deep
        read += visited * pages * page * rows * dim * item
        flops += 4 * visited * block.queries * deep * block.positions * executed_queries * dim
        first = length - tokens
        for window in arch.windows:
            useful += 4 * queries * arch.head_dim * _seen(first, length, window)
        start += tokens
    io = 2 * total * executed_queries * padded(arch.head_dim) * decoder.dtype.itemsize
    layers = arch.num_layers
    cycles = 0
    if loops is not None:
        cycles = -(-total // block.queries) * loops.queries + visits * loops.sequence + tiles * loops.positions
    return KernelCost((read + io) * layers, flops * layers, useful, cycles * len(parts) * layers)


def _seen(first: int, last: int, window: int | None) -> int:
    """Number of positions that the tokens `first..last-1` attend to: themselves and earlier ones, within the window."""
    window = window or last
    within = max(0, min(last, window) - first)  # tokens that see all before them
    ramp = within * first + within * (within + 1) // 2
    return ramp + (last - first - within) * window
