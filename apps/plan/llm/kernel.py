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


@dataclass(frozen=True)
class LayerKernel:
    """The kernel of layers of one kind, in steps of one shape, on each device."""

    layers: int
    calls: int
    """In a layer: wide heads are kept in several arrays."""
    queries: int
    """Tokens of a block of queries."""
    positions: int
    """Positions of a block of the cache."""
    page_size: int
    page_bytes: int
    """Of a page, in all calls of a layer."""
    token_bytes: int
    """Of a token's queries and its output."""
    block_flops: int
    """Of a block of queries with a block of positions."""
    loops: Loops | None

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        spec: AttentionSpec,
        cache: LayerCache,
        layers: int,
        step: tuple[int, int, int],
        loops: Loops | None,
    ) -> "LayerKernel":
        """`step`: its tokens, sequences and the pages of the longest sequence, for which blocks are chosen."""
        parts: list[jax.ShapeDtypeStruct] = jax.tree.leaves(cache)
        page, dim = parts[0].shape[1], parts[0].shape[3]
        rows = sum(part.shape[2] for part in parts) // decoder.split.devices
        queries, block = rows // 2 * spec.group, blocks(step[0], step[1], page, step[2])
        return cls(
            layers=layers,
            calls=len(parts),
            queries=block.queries,
            positions=block.positions,
            page_size=page,
            page_bytes=page * rows * dim * parts[0].dtype.itemsize,
            token_bytes=2 * queries * padded(spec.head_dim) * decoder.dtype.itemsize,
            block_flops=4 * block.queries * block.positions * queries * dim,
            loops=loops,
        )

    def cost(self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
        """Bytes, operations and cycles of all those layers' kernels in a step: see `attention`."""
        page, positions = self.page_size, self.positions
        visits = total = len(decodes)
        pages = sum([-(-length // page) for length in decodes])
        tiles = sum([-(-length // positions) for length in decodes])
        for tokens, length in chunks:
            visited = (total + tokens - 1) // self.queries - total // self.queries + 1
            total, visits = total + tokens, visits + visited
            pages, tiles = pages + visited * -(-length // page), tiles + visited * -(-length // positions)
        cycles = 0
        if self.loops is not None:
            blocks_of_queries = -(-total // self.queries)
            cycles = (
                blocks_of_queries * self.loops.queries + visits * self.loops.sequence + tiles * self.loops.positions
            )
        read = pages * self.page_bytes + total * self.token_bytes
        return self.layers * read, self.layers * tiles * self.block_flops, self.layers * self.calls * cycles


def layer_kernels(
    decoder: Decoder,
    caches: Sequence[LayerCache],
    step: tuple[int, int, int],
    loops: Callable[[AttentionSpec], Loops | None],
) -> list[LayerKernel]:
    """The kernels of each kind of layers; none where the attention is plain XLA, which the compiler counts itself.

    Args:
        caches: shapes of each layer's, all devices together, each `[pages, page_size, 2 * kv_heads, head_dim]`.
        step: see `LayerKernel.of`.
        loops: the loops of a layer's kernel.
    """
    if not isinstance(decoder.impl, PallasAttention):
        return []
    kinds: dict[AttentionSpec, tuple[AttentionSpec, LayerCache]] = {}
    counts = Counter[AttentionSpec]()
    for mixer, own in zip(decoder.mixers, decoder.arch.cache_of):
        if isinstance(mixer, AttentionMixer):
            spec = mixer.of_kernel(decoder.page_size)
            kind = replace(spec, window=None)
            kinds.setdefault(kind, (spec, caches[own]))
            counts[kind] += 1
    return [
        LayerKernel.of(decoder, spec, cache, counts[kind], step, loops(spec)) for kind, (spec, cache) in kinds.items()
    ]


def attention(
    decoder: Decoder,
    caches: Sequence[LayerCache],
    sequences: Sequence[tuple[int, int]],
    max_pages: int,
    loops: Callable[[AttentionSpec], Loops | None],
) -> KernelCost:
    """The kernel's cost for `sequences`, each (tokens in this step, tokens in the KV cache after it); see
    `layer_kernels`.

    Args:
        max_pages: of the longest sequence that the step can have.
    """
    step = sum(tokens for tokens, _ in sequences), len(sequences), max_pages
    found = layer_kernels(decoder, caches, step, loops)
    decodes = [length for tokens, length in sequences if tokens == 1]
    chunks = [(tokens, length) for tokens, length in sequences if tokens > 1]
    costs = [kind.cost(decodes, chunks) for kind in found]
    hbm, flops, cycles = (sum(parts) for parts in zip(*costs)) if costs else (0, 0, 0)
    return KernelCost(hbm, flops, _useful(decoder, sequences) if found else 0, cycles)


def _useful(decoder: Decoder, sequences: Sequence[tuple[int, int]]) -> float:
    """Operations on positions that are not masked."""
    useful = 0
    for mixer in decoder.mixers:
        if isinstance(mixer, AttentionMixer):
            spec = mixer.of_kernel(decoder.page_size)
            queries = spec.kv_heads // decoder.split.devices * spec.group
            seen = sum(_seen(length - tokens, length, spec.window) for tokens, length in sequences)
            useful += 4 * queries * spec.head_dim * seen
    return useful


def _seen(first: int, last: int, window: int | None) -> int:
    """Number of positions that the tokens `first..last-1` attend to: themselves and earlier ones, within the window."""
    window = window or last
    within = max(0, min(last, window) - first)  # tokens that see all before them
    ramp = within * first + within * (within + 1) // 2
    return ramp + (last - first - within) * window
