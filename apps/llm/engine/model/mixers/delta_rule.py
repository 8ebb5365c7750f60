"""The gated delta rule over a step's sequences, of any lengths, one packed after another.

A memory S `[key_dim, value_dim]` of each value head: S <- decay * S; S <- S + k (strength * (v - S^T k))^T; y = S^T q.

Sequences of one token, which decode, take it as it is, all at once. Longer parts take it in chunks, one after another:
within a chunk the corrections of its tokens depend on each other by a triangular system, which is solved (Yang et al.
2024, https://arxiv.org/abs/2406.06484, section 3); the rest is products of matrices. All of it is in float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from apps.llm.engine.execute.step import Batch
from apps.llm.engine.model.layers import DeltaNet

CHUNK = 64
"""Tokens of a chunk."""
EPSILON = 1e-6
"""Added to the squared length that a query or key is divided by."""
HIGHEST = jax.lax.Precision.HIGHEST


class StepParts(NamedTuple):
    """The part of each sequence that is in the step, `S` of them, and each of the step's `T` tokens in its part."""

    first: jax.Array  # [S] its first token
    tokens: jax.Array  # [S] how many it has; 0: padding
    slot: jax.Array  # [S] where its state is; the last one for padding
    new: jax.Array  # [S] whether it has no state yet
    sequence: jax.Array  # [T] each token's
    place: jax.Array  # [T] each token's place in its part
    chunks: jax.Array  # [S] chunks of the parts up to this one; of those of one token, none


def parts_of(batch: Batch) -> StepParts:
    """A step's parts."""
    number = jnp.arange(len(batch.kv_lens))
    count = jnp.where(number < batch.num_seqs[0], batch.q_lens, 0)
    sequence = batch.sequence_of_token()
    place = jnp.arange(len(batch.tokens)) - batch.q_starts[sequence]
    chunks = jnp.cumsum(jnp.where(count > 1, -(-count // CHUNK), 0))
    slot = jnp.where(count > 0, batch.slots, -1)
    return StepParts(batch.q_starts[:-1], count, slot, batch.q_lens == batch.kv_lens, sequence, place, chunks)


class DeltaTokens(NamedTuple):
    """What the rule takes of each token, `[T, heads, ...]` float32; `heads` are value heads."""

    q: jax.Array  # [..., key_dim]
    k: jax.Array
    v: jax.Array  # [..., value_dim]
    decay: jax.Array  # [T, heads] the logarithm
    strength: jax.Array  # [T, heads]


def mixed(
    spec: DeltaNet,
    qkv: jax.Array,
    ba: jax.Array,
    taps: jax.Array,
    decays: tuple[jax.Array, jax.Array],
    state: Any,
    parts: StepParts,
    kernel: Callable[..., tuple[jax.Array, jax.Array]] | None = None,
) -> tuple[jax.Array, Any]:
    """Convolution and rule, of this device's key heads.

    Args:
        qkv: `[T, key heads, channels]` float32, before the convolution.
        ba: `[T, key heads, 2, value heads of each]`, what strengths and decays are made of.
        taps: `[key heads, channels, taps]`.
        decays: `[key heads, value heads of each]`, the logarithm of the rate, and the bias.
        state: a `DeltaState`.
        kernel: computes single tokens, where they are; None: XLA does.

    Returns:
        `[T, value heads, value_dim]` float32, and the state with the step's tokens.
    """
    inputs, kept = convolved(qkv, taps, state.inputs, parts)
    tokens = _tokens(spec, inputs, ba, decays)
    single, memory = _one_by_one(tokens, state.memory, parts, kernel)
    y, memory = _in_chunks(tokens, single, memory, parts)
    return y, state._replace(inputs=kept, memory=memory)


def convolved(x: jax.Array, taps: jax.Array, kept: jax.Array, parts: StepParts) -> tuple[jax.Array, jax.Array]:
    """A causal convolution of each channel, then SiLU: `[T, key heads, channels]`, and the inputs to keep."""
    before = taps.shape[-1] - 1
    own = jnp.where(parts.new[:, None, None, None], 0.0, kept[parts.slot])  # [S, key heads, channels, before]
    y = x * taps[..., before]
    for back in range(1, before + 1):
        within = (parts.place >= back)[:, None, None]
        earlier = own[parts.sequence, ..., jnp.clip(before + parts.place - back, 0, before - 1)]
        y += jnp.where(within, jnp.roll(x, back, axis=0), earlier) * taps[..., before - back]
    last = parts.first + parts.tokens - 1
    newest = []
    for back in reversed(range(before)):
        within = (parts.tokens > back)[:, None, None]
        earlier = jnp.take_along_axis(
            own, jnp.clip(before + parts.tokens - 1 - back, 0, before - 1)[:, None, None, None], axis=-1
        )[..., 0]
        newest.append(jnp.where(within, x[jnp.clip(last - back, 0)], earlier))
    return jax.nn.silu(y), kept.at[parts.slot].set(jnp.stack(newest, axis=-1))


def _tokens(spec: DeltaNet, x: jax.Array, ba: jax.Array, decays: tuple[jax.Array, jax.Array]) -> DeltaTokens:
    """Queries and keys of unit length, for each value head."""
    count, repeat = len(x), spec.values_per_key
    q, k, v = jnp.split(x, [spec.key_dim, 2 * spec.key_dim], axis=-1)
    q, k = (
        jnp.repeat(each * jax.lax.rsqrt(jnp.sum(each * each, axis=-1, keepdims=True) + EPSILON), repeat, axis=1)
        for each in (q, k)
    )
    rate, bias = decays
    strength = jax.nn.sigmoid(ba[:, :, 0])
    decay = -jnp.exp(rate) * jax.nn.softplus(ba[:, :, 1] + bias)
    return DeltaTokens(
        q * spec.key_dim**-0.5,
        k,
        v.reshape(count, -1, spec.value_dim),
        decay.reshape(count, -1),
        strength.reshape(count, -1),
    )


def _one_by_one(
    tokens: DeltaTokens,
    memory: jax.Array,
    parts: StepParts,
    kernel: Callable[..., tuple[jax.Array, jax.Array]] | None,
) -> tuple[jax.Array, jax.Array]:
    """The sequences of one token: `[T, heads, value_dim]`, and the memory with them; others as they were."""
    alone, own, slots = parts.tokens == 1, DeltaTokens(*(each[parts.first] for each in tokens)), len(memory)
    nowhere = jnp.where(alone, parts.slot, slots)  # out of range: left out
    if kernel is not None:
        y, memory = kernel(own, memory, jnp.where(alone, parts.slot, slots - 1), parts.new)  # the last is nobody's
    elif 2 * len(alone) >= slots:
        # Most slots are in the step: their memories are taken where they are, not gathered and put back.
        seq = jnp.full(slots, -1).at[nowhere].set(jnp.arange(len(alone)), mode="drop")
        y, memory = one_token(DeltaTokens(*(each[seq] for each in own)), memory, parts.new[seq], seq >= 0)
        y = y[parts.slot]
    else:
        y, changed = one_token(own, memory[parts.slot], parts.new, alone)
        memory = memory.at[nowhere].set(changed, mode="drop")
    places = jnp.where(alone, parts.first, len(tokens.v))
    return jnp.zeros_like(tokens.v).at[places].set(y, mode="drop"), memory


def one_token(tokens: DeltaTokens, memory: jax.Array, new: jax.Array, there: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rule over one token of each sequence: `[S, heads, value_dim]`, and the memories after it.

    A memory is read twice and written once: what the new one gives is computed from the old one.

    Args:
        new: `[S]`, whether the sequence has no memory yet.
        there: `[S]`, false for one without a token, whose memory stays.
    """
    q, k, v, decay, strength = tokens
    memory = jnp.where((new & there)[:, None, None, None], 0.0, memory)
    left = jnp.where(there[:, None], jnp.exp(decay), 1.0)[..., None]
    asked = jnp.stack([k, q], axis=2)
    of_k, of_q = jnp.moveaxis(jnp.einsum("shkv,shck->shcv", memory, asked, precision=HIGHEST), 2, 0) * left
    written = jnp.where(there[:, None, None], (v - of_k) * strength[..., None], 0.0)
    y = of_q + jnp.sum(q * k, axis=-1, keepdims=True) * written
    return y, memory * left[..., None] + k[..., None] * written[..., None, :]


def _in_chunks(tokens: DeltaTokens, out: jax.Array, memory: jax.Array, parts: StepParts) -> tuple[jax.Array, jax.Array]:
    """The longer parts, chunk by chunk: `out` with theirs, and the memory with them."""
    total = len(out)
    room = [(0, CHUNK)] + [(0, 0)] * 3
    padded = DeltaTokens(*(jnp.pad(each, room[: each.ndim]) for each in tokens))

    def chunk(number: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, memory = carry
        seq = jnp.sum(parts.chunks <= number)
        before = jnp.where(seq > 0, parts.chunks[jnp.maximum(seq - 1, 0)], 0)
        offset = (number - before) * CHUNK
        start, slot = parts.first[seq] + offset, parts.slot[seq]
        there = jnp.arange(CHUNK) < parts.tokens[seq] - offset
        own = DeltaTokens(*(jax.lax.dynamic_slice_in_dim(each, start, CHUNK) for each in padded))
        state = jnp.where(parts.new[seq] & (offset == 0), 0.0, memory[slot])
        y, state = one_chunk(own, there, state)
        old = jax.lax.dynamic_slice_in_dim(out, start, CHUNK)
        y = jnp.where(there[:, None, None], y, old)
        return jax.lax.dynamic_update_slice_in_dim(out, y, start, 0), memory.at[slot].set(state)

    out = jnp.pad(out, room[:3])
    out, memory = jax.lax.fori_loop(0, parts.chunks[-1], chunk, (out, memory))
    return out[:total], memory


def one_chunk(tokens: DeltaTokens, there: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rule over up to CHUNK tokens: `[CHUNK, heads, value_dim]`, and the memory after them.

    Args:
        there: `[CHUNK]`, false for what is no token of the part.
        memory: `[heads, key_dim, value_dim]`.
    """
    q, k, v = (jnp.swapaxes(each, 0, 1) for each in tokens[:3])  # [heads, CHUNK, ...]
    decay, strength = (jnp.where(there, each.T, 0.0) for each in tokens[3:])  # [heads, CHUNK]
    passed = jnp.cumsum(decay, axis=1)
    # What is left at token i of what token j wrote. Of later tokens it may be infinite: they are left out first.
    later = jnp.tril(jnp.ones((len(there), len(there)), bool))
    left = jnp.exp(jnp.where(later, passed[:, :, None] - passed[:, None, :], -jnp.inf))

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=HIGHEST)

    keys = k * strength[..., None]
    system = product(keys, jnp.swapaxes(k, 1, 2)) * left  # below the diagonal; on it, ones
    given = jnp.concatenate([v * strength[..., None], keys * jnp.exp(passed)[..., None]], axis=-1)
    solved = jax.lax.linalg.triangular_solve(system, given, left_side=True, lower=True, unit_diagonal=True)
    wanted, known = jnp.split(solved, [v.shape[-1]], axis=-1)
    written = wanted - product(known, memory)
    y = product(q * jnp.exp(passed)[..., None], memory)
    y += product(product(q, jnp.swapaxes(k, 1, 2)) * left, written)
    rest = jnp.exp(passed[:, -1:] - passed)
    memory = memory * jnp.exp(passed[:, -1])[:, None, None]
    memory += product(jnp.swapaxes(k * rest[..., None], 1, 2), written)
    return jnp.swapaxes(y, 0, 1), memory
