"""Reads out a step's hidden states: log probabilities of given tokens, and sums of hidden states for embeddings.

The step's program is always the same and leaves its hidden states on the device. Two small programs read them, and run
only after steps where some sequence needs them. So requests that only decode pay nothing, scoring cannot change their
results by a bit, and warm-up takes little longer: see `executor_protocol.shapes_with_readout`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.param import Params

SCORE_ROWS = 4
"""Rows of `scores`: the target's log probability, its rank, the likeliest token, and that token's log probability."""

BLOCK = 64
"""Tokens whose logits exist at once: 32 MiB for a vocabulary of 128 thousand."""


class Readout:
    """What to read out of a step, on the host, beside its HostStep. Each array is None if no sequence needs it.

    targets: `[T]` int32, the token to score as the one after this position; -1: none.
    rows: `[T]` int32, the row of the sequence whose sum this position's hidden state is added to; -1: none.
    """

    def __init__(self, targets: np.ndarray | None = None, rows: np.ndarray | None = None):
        self.targets, self.rows = targets, rows

    def score(self, shape: StepShape, start: int, targets: Sequence[int]) -> None:
        """Request the log probabilities of `targets`, each as the token after one of the step's, from `start` on."""
        if self.targets is None:
            self.targets = np.full(shape.tokens, -1, np.int32)
        self.targets[start : start + len(targets)] = targets

    def pool(self, shape: StepShape, start: int, stop: int, row: int) -> None:
        """Request the sum of the hidden states of the step's tokens `[start, stop)`."""
        if self.rows is None:
            self.rows = np.full(shape.tokens, -1, np.int32)
        self.rows[start:stop] = row

    @classmethod
    def everything(cls, shape: StepShape) -> "Readout":
        """Requests both kinds, for warm-up."""
        return cls(np.zeros(shape.tokens, np.int32), np.zeros(shape.tokens, np.int32))

    def content(self) -> tuple[int, bytes]:
        """Which of the two are present (bits: 1 targets, 2 rows), and their bytes, to send over the network."""
        parts = [part for part in (self.targets, self.rows) if part is not None]
        kinds = (self.targets is not None) + 2 * (self.rows is not None)
        return kinds, b"".join(part.tobytes() for part in parts)

    @classmethod
    def of(cls, kinds: int, content: bytes) -> "Readout":
        """Rebuild a readout from the result of `content`."""
        parts = iter(np.frombuffer(content, np.int32).reshape(kinds.bit_count(), -1))
        return cls(next(parts) if kinds & 1 else None, next(parts) if kinds & 2 else None)


class Launched(NamedTuple):
    """A launched step's results on their way to the host."""

    samples: jax.Array  # as `sampling.pack` lays them out
    scores: jax.Array | None = None  # [SCORE_ROWS, T] int32, floats as their bits
    pooled: jax.Array | None = None  # [S, hidden] float32

    def on_host(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Waits for the step."""
        scores, pooled = (None if part is None else np.asarray(part) for part in (self.scores, self.pooled))
        return np.asarray(self.samples), scores, pooled


def head(weights: Params) -> Params:
    """What the programs need of the weights: the final norm's and the output head's."""
    return {name: param for name, param in weights.items() if name != "layers"}


def scores(decoder: Decoder, head: Params, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """Score each target after its token: `[SCORE_ROWS, T]` int32, floats as their bits; 0 where there is no target.

    By the model's own distribution: after its soft cap, if it has one, and before any temperature. Only the single
    likeliest token is reported: it is nearly free, more would take a sort.

    Args:
        hidden: the step's, `[T, hidden]`, before the final norm.
        targets: `[T]`, see Readout.
    """
    count, width = hidden.shape
    size = min(BLOCK, count)
    fill = -count % size
    hidden = jnp.pad(hidden, ((0, fill), (0, 0))).reshape(-1, size, width)
    targets = jnp.pad(targets, (0, fill), constant_values=-1).reshape(-1, size)

    def of_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, wanted = block

        def compute() -> jax.Array:
            logits = decoder.logits(head, x)
            # A sum, not a gather: where the vocabulary is split over devices, each reduces its own part.
            here = jnp.arange(logits.shape[1]) == wanted[:, None]
            chosen, most = jnp.sum(jnp.where(here, logits, 0.0), axis=1), jnp.max(logits, axis=1)
            rank = 1 + jnp.sum(logits > chosen[:, None], axis=1, dtype=jnp.int32)
            # The first of equals, like argmax, but as a reduction that a split vocabulary computes in parts.
            place = jnp.arange(logits.shape[1], dtype=jnp.int32)
            likeliest = jnp.min(jnp.where(logits == most[:, None], place, logits.shape[1] - 1), axis=1)
            total = jax.nn.logsumexp(logits, axis=1)
            own, top = (jax.lax.bitcast_convert_type(x - total, jnp.int32) for x in (chosen, most))
            return jnp.where(wanted >= 0, jnp.stack([own, rank, likeliest, top]), 0)

        return jax.lax.cond(jnp.any(wanted >= 0), compute, lambda: jnp.zeros((SCORE_ROWS, size), jnp.int32))

    blocks = jax.lax.map(of_block, (hidden, targets))
    return jnp.moveaxis(blocks, 1, 0).reshape(SCORE_ROWS, -1)[:, :count]


def pooled(decoder: Decoder, count: int, head: Params, hidden: jax.Array, rows: jax.Array) -> jax.Array:
    """Hidden states after the final norm, summed for each of `count` sequences: `[count, hidden]` float32."""
    x = decoder.final(head, hidden).astype(jnp.float32)
    # Tokens without a row, and padding, are scattered past the end, where `drop` discards them.
    rows = jnp.where(rows < 0, count, rows)
    return jnp.zeros((count, x.shape[1]), jnp.float32).at[rows].add(x, mode="drop")
