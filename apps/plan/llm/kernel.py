"""What the attention kernel moves and computes, worked out by hand.

A Pallas call is opaque to the compiler's cost analysis, and jax's ragged paged attention gives it no cost_estimate: it
could not, since its work hangs on the sequences' lengths at run time. The counts here follow the kernel's loops
(jax/experimental/pallas/ops/tpu/ragged_paged_attention/kernel.py, jax 0.10): for each block of query tokens, each
sequence in it, all the sequence's pages, a block at a time; masked rows and positions are computed too, and a sliding
window masks but does not skip.
"""

from collections.abc import Sequence

import jax

from apps.llm.engine.attention.pallas import POSITIONS_PER_BLOCK, QUERIES_PER_BLOCK, PallasAttention, padded
from apps.llm.engine.attention.spec import LayerCache
from apps.llm.engine.model.decoder import Decoder
from apps.plan.measured import KernelCost


def attention(decoder: Decoder, cache: LayerCache, sequences: Sequence[tuple[int, int]]) -> KernelCost:
    """The kernel's cost for `sequences`, each (tokens in this step, tokens in the KV cache after it).

    Nothing, where the attention is plain XLA: then the compiler counts it.

    Args:
        cache: shapes of one layer's, all devices together, each `[pages, page_size, 2 * kv_heads, head_dim]`.
    """
    if not isinstance(decoder.impl, PallasAttention):
        return KernelCost(0, 0, 0)
    arch, devices = decoder.arch, decoder.heads.devices
    parts = jax.tree.leaves(cache)
    page, dim, item = parts[0].shape[1], parts[0].shape[3], parts[0].dtype.itemsize
    rows, kv_heads = sum(part.shape[2] for part in parts) // devices, decoder.heads.kv_heads // devices
    queries, executed_queries = kv_heads * decoder.heads.group, rows // 2 * decoder.heads.group
    block = min(QUERIES_PER_BLOCK, sum(tokens for tokens, _ in sequences))
    read = flops = useful = start = 0
    for tokens, length in sequences:
        blocks = (start + tokens - 1) // block - start // block + 1
        pages = -(-length // page)
        positions = -(-length // POSITIONS_PER_BLOCK) * POSITIONS_PER_BLOCK
        read += blocks * pages * page * rows * dim * item
        flops += 4 * blocks * block * positions * executed_queries * dim
        first = length - tokens
        for window in arch.windows:
            useful += 4 * queries * arch.head_dim * _seen(first, length, window)
        start += tokens
    total = sum(tokens for tokens, _ in sequences)
    io = 2 * total * executed_queries * padded(arch.head_dim) * decoder.dtype.itemsize
    layers = arch.num_layers
    return KernelCost((read + io) * layers, flops * layers, useful)


def _seen(first: int, last: int, window: int | None) -> int:
    """Positions that the tokens `first..last-1` see, each itself and those before it, within the window."""
    window = window or last
    within = max(0, min(last, window) - first)  # tokens that see all before them
    ramp = within * first + within * (within + 1) // 2
    return ramp + (last - first - within) * window
