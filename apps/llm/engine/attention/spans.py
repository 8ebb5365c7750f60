"""Attention of an image's tokens to those that come after them, where a model's image is seen both ways.

An implementation computes every token as if it saw only what comes before it. Here those of images are computed once
more, over what it has written to its cache: it need not know of them, and a step without images costs nothing.

Each row's result is that of its own keys, in blocks that begin at fixed places: it does not depend on the rest of the
step.
"""

from typing import Any

import jax
import jax.numpy as jnp

from apps.llm.engine.attention.spec import AttentionBackend, AttentionSpec, LayerCache
from apps.llm.engine.execute.step import Batch

PART = 128
"""Most tokens of an image that are computed together."""
KEYS = 512
LOWEST = -1e30


def attended(
    impl: AttentionBackend, q: jax.Array, out: jax.Array, cache: LayerCache, batch: Batch, spec: AttentionSpec
) -> jax.Array:
    """`out` with the attention of the batch's `spans` in place of what it has for their tokens.

    Args:
        q, out: `[T, kv_heads, group, head_dim]`.
        cache: with the step's keys and values. All of a span's must be in it.
    """
    assert batch.spans is not None
    spans, seqs = batch.spans, batch.sequence_of_token()
    width = min(PART, len(q))

    def part(number: jax.Array, out: jax.Array) -> jax.Array:
        first, count, end = spans[number]
        seq, rows = seqs[first], first + jnp.arange(width)
        position = batch.kv_lens[seq] - batch.q_starts[seq + 1] + rows
        pages = batch.pages[seq]
        y = _attention(impl, q[jnp.minimum(rows, len(q) - 1)], cache, pages, position, end, spec)
        return out.at[jnp.where(jnp.arange(width) < count, rows, len(q))].set(y.astype(out.dtype), mode="drop")

    with jax.named_scope("images"):  # the plan finds the loop by it
        return jax.lax.fori_loop(0, jnp.sum(spans[:, 1] > 0), part, out)


def _attention(
    impl: AttentionBackend,
    q: jax.Array,
    cache: LayerCache,
    pages: jax.Array,
    position: jax.Array,
    end: jax.Array,
    spec: AttentionSpec,
) -> jax.Array:
    """Of queries `[n, kv_heads, group, head_dim]` at these positions, to all keys of a sequence before `end`."""
    count = max(1, min(KEYS // spec.page_size, len(pages)))
    keys = count * spec.page_size

    def block(number: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, sums = state
        page = number * count + jnp.arange(count)
        k, v = impl.read(cache, pages[jnp.minimum(page, len(pages) - 1)], spec, q.dtype)
        key = number * keys + jnp.arange(keys)
        # What a page's last owner left past this sequence's end may be anything, and 0 * NaN is not 0.
        v = jnp.where((key < end)[:, None, None], v, 0)
        scores = jnp.einsum("qhgd,khd->hgqk", q, k, preferred_element_type=jnp.float32) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * jnp.tanh(scores / spec.softcap)
        seen = jnp.broadcast_to(key < end, (len(q), keys))
        if spec.window is not None:
            seen &= key > position[:, None] - spec.window
        higher = jnp.maximum(top, jnp.where(seen, scores, LOWEST).max(axis=-1))
        weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
        shrink = jnp.exp(top - higher)
        part = jnp.einsum("hgqk,khd->hgqd", weights.astype(q.dtype), v, preferred_element_type=jnp.float32)
        return higher, total * shrink + weights.sum(axis=-1), sums * shrink[..., None] + part

    shape = *q.shape[1:3], len(q)
    state: Any = jnp.full(shape, LOWEST), jnp.zeros(shape), jnp.zeros((*shape, spec.head_dim))
    lowest = 0 if spec.window is None else jnp.maximum(position[0] - spec.window + 1, 0) // keys
    _, total, sums = jax.lax.fori_loop(lowest, -(-end // keys), block, state)
    return jnp.moveaxis(sums / jnp.maximum(total, 1e-30)[..., None], 2, 0)
