"""A step's inputs: packed into one vector by the host, unpacked into a batch on the device.

One vector, because each array copied to the device costs tens of microseconds, and because a multi-host slice sends
the same bytes to every host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Batch(NamedTuple):
    """A step's sequences on the device: `S` sequences packed one after another into `T` tokens, then padding."""

    tokens: jax.Array  # [T] int32; a decoding sequence's entry is replaced by the token it sampled last
    q_starts: jax.Array  # [S + 1] first token of each sequence; the last entry is the number of tokens
    kv_lens: jax.Array  # [S] tokens in the sequence's KV cache once this step has run; 0: padding
    pages: jax.Array  # [S, max_pages] page of each run of page_size positions; 0: none
    num_seqs: jax.Array  # [1]
    rows: jax.Array  # [S] the sequence's slot: its row in the state that outlives the step (last token, penalties)
    decoding: jax.Array  # [S] 1: its only token is the one it sampled in an earlier step, still on the device
    adapter: jax.Array  # [S] place of the sequence's LoRA adapter, from 1; 0: none
    sampling: "SamplingRows"

    @property
    def q_lens(self) -> jax.Array:  # [S]
        return self.q_starts[1:] - self.q_starts[:-1]

    def sequence_of_token(self) -> jax.Array:
        """`[T]` index of each token's sequence; padding tokens get some index in [0, S)."""
        t = jnp.arange(self.tokens.shape[0])
        passed = jnp.sum(self.q_starts[None, 1:] <= t[:, None], axis=1)
        return jnp.minimum(passed, self.kv_lens.shape[0] - 1)


class SamplingRows(NamedTuple):
    """Sampling settings of the step's sequences, each `[S]`."""

    temperature: jax.Array  # float32; 0: greedy
    top_p: jax.Array
    min_p: jax.Array
    presence: jax.Array
    frequency: jax.Array
    repetition: jax.Array
    top_k: jax.Array  # int32; 0: all
    seed: jax.Array
    logprobs: jax.Array  # int32; 1: log probabilities are wanted


INT_ROWS = ("kv_lens", "row", "decoding", "adapter", "top_k", "seed", "logprobs")
FLOAT_ROWS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")


@dataclass(frozen=True)
class StepShape:
    """The static shape of a step; each has its own compiled program."""

    tokens: int  # T
    seqs: int  # S
    max_pages: int  # pages of the longest sequence

    @cache  # noqa: B019 - there are a dozen shapes in the life of an engine
    def parts(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Where each part lies in the packed vector, and its shape."""
        shapes: dict[str, tuple[int, ...]] = {"tokens": (self.tokens,), "q_starts": (self.seqs + 1,)}
        shapes |= {"pages": (self.seqs, self.max_pages), "num_seqs": (1,)}
        shapes |= dict.fromkeys(INT_ROWS + FLOAT_ROWS, (self.seqs,))
        ends = accumulate(map(math.prod, shapes.values()), initial=0)
        return {name: (slice(*where), shape) for where, (name, shape) in zip(pairwise(ends), shapes.items())}

    @property
    def size(self) -> int:
        return max(where.stop for where, _ in self.parts().values())

    def host(self) -> "HostStep":
        return HostStep(self)

    def unpack(self, packed: jax.Array) -> Batch:
        """The batch, inside a compiled step, from `[size]` int32."""
        given = {
            name: jax.lax.slice(packed, (where.start,), (where.stop,)).reshape(shape)
            for name, (where, shape) in self.parts().items()
        }
        given |= {name: jax.lax.bitcast_convert_type(given[name], jnp.float32) for name in FLOAT_ROWS}
        sampling = SamplingRows(**{name: given.pop(name) for name in SamplingRows._fields})
        return Batch(rows=given.pop("row"), sampling=sampling, **given)


class HostStep:
    """The packed vector on the host, with a numpy view for each part; `add` appends a sequence."""

    def __init__(self, shape: StepShape):
        self.shape = shape
        self.packed = np.zeros(shape.size, np.int32)
        views = {name: self.packed[where].reshape(dims) for name, (where, dims) in shape.parts().items()}
        self._tokens, self._q_starts, self._pages, self._num_seqs, *_ = views.values()
        self._rows = views | {name: views[name].view(np.float32) for name in FLOAT_ROWS}
        self._rows["repetition"][:] = 1.0  # no penalty for padding, or every step would compute them
        self._filled = 0
        self._page_columns = 0

    def trimmed(self) -> tuple[int, bytes]:
        """The number of page table columns in use, and the vector without the unused ones, to send over the network.

        The table is most of the vector (a megabyte for long contexts), and in a decode step nearly all of it is zeros.
        """
        (table, _), used = self.shape.parts()["pages"], self._page_columns
        pages = self._pages[:, :used]
        return used, self.packed[: table.start].tobytes() + pages.tobytes() + self.packed[table.stop :].tobytes()

    @classmethod
    def whole(cls, shape: StepShape, used: int, trimmed: bytes | memoryview) -> "HostStep":
        """Rebuild the step from the result of `trimmed`; only for launching it."""
        step, (table, _) = cls(shape), shape.parts()["pages"]
        given = np.frombuffer(trimmed, np.int32)
        end = table.start + shape.seqs * used
        step.packed[: table.start] = given[: table.start]
        step._pages[:, :used] = given[table.start : end].reshape(shape.seqs, used)
        step.packed[table.stop :] = given[end:]
        return step

    def add(self, tokens: Sequence[int], kv_len: int, pages: Sequence[int], decoding: bool, **rows: float) -> int:
        """Append a sequence: the tokens to compute (a placeholder when decoding), its state row and sampling settings.

        Returns the index of its first token in the step.
        """
        i, start, stop = int(self._num_seqs[0]), self._filled, self._filled + len(tokens)
        self._tokens[start:stop] = tokens
        self._q_starts[i + 1 :] = stop
        self._pages[i, : len(pages)] = pages
        self._page_columns = max(self._page_columns, len(pages))
        self._rows["kv_lens"][i] = kv_len
        self._rows["decoding"][i] = decoding
        for name, value in rows.items():
            self._rows[name][i] = value
        self._num_seqs[0], self._filled = i + 1, stop
        return start
