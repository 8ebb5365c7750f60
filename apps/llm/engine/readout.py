"""Looking at a step's hidden states: how likely given tokens are, and hidden states summed to vectors.

The step's program is the same whether anyone looks or not: it leaves its hidden states on the device. Two small
programs look at them, and run only after steps of which some sequence wants them. So requests that only decode pay
nothing, others' scores cannot change their bits, and getting ready takes little longer: see `readable`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.params import Params
from apps.llm.engine.step import StepShape

SCORE_ROWS = 4
"""Of `scores`: log probability of the target, its rank, the likeliest token, its log probability."""

BLOCK = 64
"""Tokens whose logits exist at once: 32 MiB for a vocabulary of 128 thousand."""


class Readout:
    """What is wanted of a step's tokens, on the host, beside its HostStep; None where no sequence wants any.

    targets: `[T]` int32, the token whose log probability is wanted as the next one; -1: of none.
    rows: `[T]` int32, the sequence in the step to whose sum the hidden state is added; -1: to none.
    """

    def __init__(self, targets: np.ndarray | None = None, rows: np.ndarray | None = None):
        self.targets, self.rows = targets, rows

    def score(self, shape: StepShape, start: int, targets: list[int]) -> None:
        """Log probabilities of `targets`, each after the step's token at its place from `start` on."""
        if self.targets is None:
            self.targets = np.full(shape.tokens, -1, np.int32)
        self.targets[start : start + len(targets)] = targets

    def pool(self, shape: StepShape, start: int, stop: int, row: int) -> None:
        """The sum of the hidden states of the step's tokens from `start` to before `stop`."""
        if self.rows is None:
            self.rows = np.full(shape.tokens, -1, np.int32)
        self.rows[start:stop] = row

    @classmethod
    def everything(cls, shape: StepShape) -> "Readout":
        """Wants both: for warming up."""
        return cls(np.zeros(shape.tokens, np.int32), np.zeros(shape.tokens, np.int32))

    def content(self) -> tuple[int, bytes]:
        """Which of the two are there (1: targets, 2: rows), and their bytes: what a network carries."""
        parts = [part for part in (self.targets, self.rows) if part is not None]
        kinds = (self.targets is not None) + 2 * (self.rows is not None)
        return kinds, b"".join(part.tobytes() for part in parts)

    @classmethod
    def of(cls, kinds: int, content: bytes) -> "Readout":
        """The readout that `content` gave."""
        parts = iter(np.frombuffer(content, np.int32).reshape(kinds.bit_count(), -1))
        return cls(next(parts) if kinds & 1 else None, next(parts) if kinds & 2 else None)


class Launched(NamedTuple):
    """A launched step's results on their way to the host."""

    samples: jax.Array  # as `sampling.pack` lays them out
    scores: jax.Array | None = None  # [SCORE_ROWS, T] int32, floats as their bits
    pooled: jax.Array | None = None  # [S, hidden] float32


class ReadoutPrograms:
    """The compiled programs. Their weights are the model's own: the final norm's and the head's."""

    def __init__(self, decoder: Decoder, params: Params):
        everywhere = NamedSharding(decoder.mesh, P())
        self._decoder = decoder
        self._head = {name: param for name, param in params.items() if name != "layers"}
        self._scores = jax.jit(self._compute_scores, out_shardings=everywhere)
        self._pooled = jax.jit(self._compute_pooled, static_argnames="count", out_shardings=everywhere)

    def scores(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """How likely each target is after its token, `[SCORE_ROWS, T]` int32, floats as their bits; 0: none is wanted.

        Of the model's own distribution: after its soft cap, if it has one, and before any temperature. The likeliest
        token costs nothing beside the logits; more of them would take a sort.

        Args:
            hidden: the step's, `[T, hidden]`, before the final norm.
            targets: `[T]`, see Readout.
        """
        return self._scores(self._head, hidden, targets)

    def pooled(self, hidden: jax.Array, rows: jax.Array, count: int) -> jax.Array:
        """Hidden states after the final norm, summed for each sequence: `[count, hidden]` float32."""
        return self._pooled(self._head, hidden, rows, count)

    def _compute_scores(self, head: Params, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        count, width = hidden.shape
        size = min(BLOCK, count)
        fill = -count % size
        hidden = jnp.pad(hidden, ((0, fill), (0, 0))).reshape(-1, size, width)
        targets = jnp.pad(targets, (0, fill), constant_values=-1).reshape(-1, size)

        def of_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, wanted = block

            def compute() -> jax.Array:
                logits = self._decoder.logits(head, x)
                # A sum, not a gather: where the vocabulary is split over devices each looks at its own part.
                here = jnp.arange(logits.shape[1]) == wanted[:, None]
                chosen, most = jnp.sum(jnp.where(here, logits, 0.0), axis=1), jnp.max(logits, axis=1)
                rank = 1 + jnp.sum(logits > chosen[:, None], axis=1, dtype=jnp.int32)
                # The first of equals, as argmax has it: also a reduction that a split vocabulary does in parts.
                place = jnp.arange(logits.shape[1], dtype=jnp.int32)
                likeliest = jnp.min(jnp.where(logits == most[:, None], place, logits.shape[1] - 1), axis=1)
                total = jax.nn.logsumexp(logits, axis=1)
                own, top = (jax.lax.bitcast_convert_type(x - total, jnp.int32) for x in (chosen, most))
                return jnp.where(wanted >= 0, jnp.stack([own, rank, likeliest, top]), 0)

            return jax.lax.cond(jnp.any(wanted >= 0), compute, lambda: jnp.zeros((SCORE_ROWS, size), jnp.int32))

        blocks = jax.lax.map(of_block, (hidden, targets))
        return jnp.moveaxis(blocks, 1, 0).reshape(SCORE_ROWS, -1)[:, :count]

    def _compute_pooled(self, head: Params, hidden: jax.Array, rows: jax.Array, count: int) -> jax.Array:
        x = self._decoder.final(head, hidden).astype(jnp.float32)
        # Padding, and tokens that nobody wants, are added past the end: scatter drops them, whatever they hold.
        rows = jnp.where(rows < 0, count, rows)
        return jnp.zeros((count, x.shape[1]), jnp.float32).at[rows].add(x, mode="drop")
