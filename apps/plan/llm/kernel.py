"""Analytic cost of the attention kernel: bytes moved, operations, and cycles where its loops' are known.

A Pallas call is opaque to the compiler's cost analysis, and jax's ragged paged attention gives it no cost_estimate: it
cannot, since the work depends on the sequences' lengths at run time. The counts here follow the kernel's loops
(jax/experimental/pallas/ops/tpu/ragged_paged_attention/kernel.py, jax 0.10): for each block of query tokens, each
sequence in it, all the sequence's pages, a block at a time; masked rows and positions are computed too, and a sliding
window masks but does not skip.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax

from apps.llm.engine.attention.pallas import PallasAttention, blocks, padded
from apps.llm.engine.attention.spec import AttentionSpec, LayerCache
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.mixers.attention import AttentionMixer
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
    decoder: Decoder,
    caches: Sequence[LayerCache],
    sequences: Sequence[tuple[int, int]],
    max_pages: int,
    loops: Callable[[AttentionSpec], Loops | None],
) -> KernelCost:
    """The kernel's cost for `sequences`, each (tokens in this step, tokens in the KV cache after it).

    Zero where the attention is plain XLA, which the compiler counts itself.

    Args:
        caches: shapes of each layer's, all devices together, each `[pages, page_size, 2 * kv_heads, head_dim]`.
        max_pages: of the longest sequence that the step can have.
        loops: the loops of a layer's kernel.
    """
    if not isinstance(decoder.impl, PallasAttention):
        return KernelCost(0, 0, 0, 0)
    kinds: dict[AttentionSpec, tuple[AttentionSpec, LayerCache]] = {}
    counts, useful = Counter[AttentionSpec](), 0
    for mixer, own in zip(decoder.mixers, decoder.arch.cache_of):
        if not isinstance(mixer, AttentionMixer):
            continue
        spec = mixer.of_kernel(decoder.page_size)
        kind = replace(spec, window=None)
        kinds.setdefault(kind, (spec, caches[own]))
        counts[kind] += 1
        queries = spec.kv_heads // decoder.split.devices * spec.group
        seen = sum(_seen(length - tokens, length, spec.window) for tokens, length in sequences)
        useful += 4 * queries * spec.head_dim * seen
    hbm = flops = cycles = 0
    for kind, (spec, cache) in kinds.items():
        cost = _layer(decoder, spec, jax.tree.leaves(cache), sequences, max_pages, loops(spec))
        hbm, flops, cycles = (one + counts[kind] * each for one, each in zip((hbm, flops, cycles), cost))
    return KernelCost(hbm, flops, useful, cycles)


def _layer(
    decoder: Decoder,
    spec: AttentionSpec,
    parts: Sequence[jax.ShapeDtypeStruct],
    sequences: Sequence[tuple[int, int]],
    max_pages: int,
    loops: Loops | None,
) -> tuple[int, int, int]:
    """Bytes, operations and cycles of one layer's kernels."""
    page, dim, item = parts[0].shape[1], parts[0].shape[3], parts[0].dtype.itemsize
    rows = sum(part.shape[2] for part in parts) // decoder.split.devices
    executed_queries = rows // 2 * spec.group
    total = sum(tokens for tokens, _ in sequences)
    block = blocks(total, len(sequences), page, max_pages)
    read = flops = start = visits = tiles = 0
    for tokens, length in sequences:
        visited = (start + tokens - 1) // block.queries - start // block.queries + 1
        pages, deep = -(-length // page), -(-length // block.positions)
        visits, tiles = visits + visited, tiles + visited * deep
        read += visited * pages * page * rows * dim * item
        flops += 4 * visited * block.queries * deep * block.positions * executed_queries * dim
        start += tokens
    io = 2 * total * executed_queries * padded(spec.head_dim) * decoder.dtype.itemsize
    cycles = 0
    if loops is not None:
        cycles = -(-total // block.queries) * loops.queries + visits * loops.sequence + tiles * loops.positions
    return read + io, flops, cycles * len(parts)


def _seen(first: int, last: int, window: int | None) -> int:
    """Number of positions that the tokens `first..last-1` attend to: themselves and earlier ones, within the window."""
    window = window or last
    within = max(0, min(last, window) - first)  # tokens that see all before them
    ramp = within * first + within * (within + 1) // 2
    return ramp + (last - first - within) * window
