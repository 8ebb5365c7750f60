"""Samples tokens from logits on the device, with each sequence's own settings.

Where the vocabulary is split over devices, each device gets the whole logits of a few sequences and samples those. That
takes one exchange a step; maxima and sums over a split vocabulary would take one each.

Nothing here sorts the vocabulary: top-k and top-p thresholds are found by bisection over the float's bits, which is
exact and takes a few dozen passes. Work that no sequence in the step needs is skipped at run time (`lax.cond`), so that
each shape has one program, whatever the requests ask for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.arrays.collectives import AXIS, gathered
from apps.llm.api import MAX_BIAS, TOP_LOGPROBS
from apps.llm.engine.execute.step import Batch, SamplingRows
from apps.llm.engine.execute.vocabulary_scans import BLOCK, in_blocks, largest_threshold, likeliest, weighted_choice

PROMPT_BIT = 1 << 14  # in `SamplingState.counts`: the token occurs in the prompt
NOT_FINITE = -2
"""In place of a sampled token: the sequence's logits, or hidden states of this step, are not finite numbers."""


Input = jax.Array | np.ndarray


class SamplingState(NamedTuple):
    """State that is kept between steps, one row for each slot of the batch and a scratch row."""

    last_token: jax.Array  # [rows] int32, the token that a decoding sequence continues from
    counts: jax.Array  # [rows, vocab] int16: how often the token occurs in the answer, and PROMPT_BIT

    @classmethod
    def empty(cls, rows: int, vocab: int) -> "SamplingState":
        return cls(jnp.zeros(rows, jnp.int32), jnp.zeros((rows, vocab), jnp.int16))


class TokenConstraints(NamedTuple):
    """Rarely used inputs, made on the host. Empty ones are kept on the device and reused."""

    allowed: Input  # [S, ceil(vocab / 32)] uint32 token masks, one bit a token: structured output, min_tokens
    bias_ids: Input  # [S, MAX_BIAS] int32
    bias: Input  # [S, MAX_BIAS] float32
    used: Input  # [2] int32: whether any mask is in use, whether any bias is

    @classmethod
    def empty(cls, seqs: int, vocab: int) -> "TokenConstraints":
        """Host arrays without masks or biases."""
        words = -(-vocab // 32)
        return cls(
            np.zeros((seqs, words), np.uint32),
            np.zeros((seqs, MAX_BIAS), np.int32),
            np.zeros((seqs, MAX_BIAS), np.float32),
            np.zeros(2, np.int32),
        )


class Sampled(NamedTuple):
    """A step's samples before packing: see `pack`, and `executor_protocol.Tokens`."""

    tokens: jax.Array  # [S]
    logprob: jax.Array  # [S] of the sampled token
    top_ids: jax.Array  # [S, TOP_LOGPROBS]
    top_logprobs: jax.Array  # [S, TOP_LOGPROBS]


def sample(
    logits: jax.Array,
    batch: Batch,
    state: SamplingState,
    constraints: TokenConstraints,
    mesh: Mesh,
    finite: jax.Array | None = None,
) -> tuple[jax.Array, SamplingState]:
    """Sample one token for each sequence from `logits [S, vocab]` and record it in the state.

    Args:
        finite: `[S]`, whether what the logits are made of is finite; default: it is. A sequence where it, or its
            logits, are not has NOT_FINITE in place of a token.

    Returns:
        The samples, as `pack` lays them out, and the state; both replicated on every device of the mesh.
    """
    finite = jnp.ones(len(logits), bool) if finite is None else finite
    rows = _Rows(batch.kv_lens, batch.rows, finite, batch.sampling)
    packed = (_in_shares(mesh) if mesh.size > 1 else _pick)(logits, rows, state.counts, constraints)
    tokens, present = jnp.maximum(packed[:, 0], 0), batch.kv_lens > 0
    # Padding writes to the last row, the scratch row.
    row = jnp.where(present, batch.rows, state.last_token.shape[0] - 1)
    return packed, SamplingState(
        state.last_token.at[row].set(tokens), state.counts.at[row, tokens].add(present.astype(jnp.int16))
    )


class _Rows(NamedTuple):
    """The per-sequence fields of a Batch that sampling needs, each `[S]`."""

    kv_lens: jax.Array
    rows: jax.Array
    finite: jax.Array
    sampling: SamplingRows


def all_finite(x: jax.Array) -> jax.Array:
    """Whether each row of `[rows, n]` has only finite numbers: `[rows]`."""
    return jnp.isfinite(jnp.max(jnp.abs(x), axis=-1))


def _in_shares(mesh: Mesh) -> Callable[..., jax.Array]:
    """`_pick` with the sequences split over the devices of the mesh; every device gets all results.

    By shard_map, because XLA's partitioner would propagate this split into the rest of the step.
    """
    devices = mesh.size

    def pick(logits: jax.Array, batch: _Rows, counts: jax.Array, constraints: TokenConstraints) -> jax.Array:
        """On one device: `logits` are its columns of all rows, or everything; the rest is everything."""
        seqs = batch.kv_lens.shape[0]
        share = -(-seqs // devices)  # the last devices may have fewer sequences, or none
        first = jax.lax.axis_index(AXIS) * share

        def even(x: jax.Array) -> jax.Array:
            """`[S, ...]`, with rows added until all shares are whole.

            The rows added are copies of the last sequence's. Zeros could ask for work that no sequence needs.
            """
            rows_added = (0, share * devices - seqs)
            return jnp.pad(x, (rows_added, *((0, 0),) * (x.ndim - 1)), mode="edge")

        def own(x: jax.Array) -> jax.Array:
            """The rows of this device's sequences."""
            return jax.lax.dynamic_slice_in_dim(even(x), first, share)

        if logits.shape[1] < counts.shape[1]:
            # The step's one exchange: columns of all sequences become all columns of this device's.
            logits = jax.lax.all_to_all(even(logits), AXIS, split_axis=0, concat_axis=1, tiled=True)
        else:
            logits = own(logits)
        # `used` says of the whole step what it needs, and the counts are by slot: neither has a row for each sequence.
        mine = constraints._replace(
            **{name: own(getattr(constraints, name)) for name in ("allowed", "bias_ids", "bias")}
        )
        packed = _pick(logits, jax.tree.map(own, batch), counts, mine)
        return gathered(packed, mesh)[:seqs]

    def picked(logits: jax.Array, *rest: Any) -> jax.Array:
        # Like the decoder's output head: a vocabulary that does not divide is replicated on every device.
        vocab = P(None, None if logits.shape[1] % devices else AXIS)
        return jax.shard_map(pick, mesh=mesh, in_specs=(vocab, P(), P(), P()), out_specs=P(), check_vma=False)(
            logits, *rest
        )

    return picked


def _pick(logits: jax.Array, batch: _Rows, counts: jax.Array, constraints: TokenConstraints) -> jax.Array:
    rows = batch.sampling
    adjusted = _penalized(logits, rows, counts, batch.rows)
    adjusted = _biased(adjusted, constraints)
    position = batch.kv_lens  # the sampled token's position, which with the seed determines the random number
    best, highest = likeliest(adjusted)
    tokens = jax.lax.cond(
        jnp.any(rows.temperature > 0),
        lambda: jnp.where(rows.temperature > 0, _draw(adjusted, rows, position), best),
        lambda: best,
    ).astype(jnp.int32)
    sampled = _with_logprobs(tokens, logits, jnp.any(rows.logprobs > 0))
    # The highest logit is NaN where any is. It is -infinity where a mask leaves nothing, as the host finds.
    finite = batch.finite & (highest < jnp.inf)
    return pack(sampled._replace(tokens=jnp.where(finite, tokens, NOT_FINITE)))


def _penalized(logits: jax.Array, rows: SamplingRows, counts: jax.Array, row: jax.Array) -> jax.Array:
    def apply() -> jax.Array:
        count = counts[row]
        answered = (count & (PROMPT_BIT - 1)).astype(jnp.float32)
        repetition = jnp.where(count != 0, rows.repetition[:, None], 1.0)
        x = jnp.where(logits > 0, logits / repetition, logits * repetition)
        return x - rows.frequency[:, None] * answered - rows.presence[:, None] * (answered > 0)

    wanted = jnp.any((rows.presence != 0) | (rows.frequency != 0) | (rows.repetition != 1))
    return jax.lax.cond(wanted, apply, lambda: logits)


def _biased(logits: jax.Array, constraints: TokenConstraints) -> jax.Array:
    def bias(x: jax.Array) -> jax.Array:
        return x.at[jnp.arange(len(x))[:, None], constraints.bias_ids].add(constraints.bias)

    def allow(x: jax.Array) -> jax.Array:
        # Each word is repeated along a block, rather than each bit gathered from its word: for 256,000 tokens XLA
        # compiles that for TPU in a fifth of the time and estimates three fifths of the cycles.
        lane = jnp.arange(BLOCK)
        words = in_blocks(constraints.allowed, BLOCK // 32, fill=0)  # type: ignore[arg-type]  # inside a program the host's arrays are traced ones
        words = jnp.take_along_axis(words, jnp.broadcast_to(lane // 32, (*words.shape[:2], BLOCK)), axis=2)
        bits = (words >> (lane % 32).astype(jnp.uint32)) & 1
        return jnp.where(bits.reshape(len(x), -1)[:, : x.shape[1]] == 1, x, -jnp.inf)

    logits = jax.lax.cond(constraints.used[1] > 0, bias, lambda x: x, logits)
    return jax.lax.cond(constraints.used[0] > 0, allow, lambda x: x, logits)


def _draw(logits: jax.Array, rows: SamplingRows, position: jax.Array) -> jax.Array:
    """Draw a token for each row by its temperature, top_k, top_p and min_p. One uniform number for each row selects
    from the cumulative weights, so that the result depends on that row alone."""
    scaled = logits / jnp.maximum(rows.temperature, 1e-6)[:, None]
    weights = jnp.exp(scaled - scaled.max(axis=-1, keepdims=True))  # the likeliest token has weight 1
    vocab = logits.shape[1]
    top_k = jnp.where((rows.top_k <= 0) | (rows.top_k > vocab), vocab, rows.top_k)
    at_least_k = largest_threshold(lambda t: jnp.sum(weights >= t[:, None], axis=-1) >= top_k, len(top_k))
    weights = jnp.where(weights >= at_least_k[:, None], weights, 0.0)
    mass = rows.top_p * weights.sum(axis=-1)
    nucleus = largest_threshold(
        lambda t: jnp.sum(jnp.where(weights >= t[:, None], weights, 0.0), axis=-1) >= mass, len(mass)
    )
    nucleus = jnp.where(rows.top_p < 1, nucleus, 0.0)
    floor = jnp.maximum(nucleus, rows.min_p)
    weights = jnp.where(weights >= floor[:, None], weights, 0.0)

    def uniform(seed: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(seed), position))

    return weighted_choice(weights, jax.vmap(uniform)(rows.seed, position))


def _with_logprobs(tokens: jax.Array, logits: jax.Array, wanted: jax.Array) -> Sampled:
    top = min(TOP_LOGPROBS, logits.shape[1])

    def compute() -> Sampled:
        logprobs = jax.nn.log_softmax(logits, axis=-1)
        values, ids = jax.lax.top_k(logprobs, top)
        chosen = jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
        return Sampled(tokens, chosen, ids.astype(jnp.int32), values)

    def skip() -> Sampled:
        rows = len(tokens)
        return Sampled(tokens, jnp.zeros(rows), jnp.zeros((rows, top), jnp.int32), jnp.zeros((rows, top)))

    return jax.lax.cond(wanted, compute, skip)


def pack(sampled: Sampled) -> jax.Array:
    """Pack into one `[S, 2 + 2 * TOP_LOGPROBS]` int32 array, for a single copy to the host in each step."""

    def bits(x: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(x, jnp.int32)

    columns = sampled.tokens[:, None], bits(sampled.logprob)[:, None], sampled.top_ids, bits(sampled.top_logprobs)
    return jnp.concatenate(columns, axis=1)


def start_slot(state: SamplingState, slot: jax.Array, prompt: jax.Array, answer: jax.Array) -> SamplingState:
    """Set the counts of a sequence that enters the batch; `prompt` and `answer` are token ids `[n]`, padded with -1."""
    vocab = state.counts.shape[1]
    # Negative indices would wrap around: move padding past the end, where scatter drops it.
    prompt, answer = (jnp.where(ids < 0, vocab, ids) for ids in (prompt, answer))
    counts = jnp.zeros(vocab, jnp.int16).at[prompt].set(PROMPT_BIT, mode="drop").at[answer].add(1, mode="drop")
    return state._replace(counts=state.counts.at[slot].set(counts))
