"""A step's inputs: packed into one vector by the host, unpacked into a batch on the device.

One vector, because each array copied to the device costs tens of microseconds, and because a multi-host slice sends
the same bytes to every host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
    slots: jax.Array  # [S] the sequence's slot: its place in what mixers keep by slot
    rows: jax.Array  # [S] the slot that keeps the sample and its counts; the last one of all: nobody wants it
    decoding: jax.Array  # [S] 1: its only token is the one it sampled in an earlier step, still on the device
    adapter: jax.Array  # [S] index of the sequence's LoRA adapter, from 1; 0: none
    sampling: "SamplingRows"
    positions: jax.Array | None = None  # [3, T] time, row and column of each token, of a model that sees; None: kv_lens
    spans: jax.Array | None = None  # [T // 2, 3] parts of images: first token, tokens, place after the image
    image_rows: jax.Array | None = None  # [T] what stands for it among encoded images, from 1; 0: its own embedding

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


FLOAT_ROWS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
SETTINGS = ("adapter", "top_k", "seed", "logprobs", *FLOAT_ROWS)
"""What stays the same for all steps of a sequence; float32 as their bits."""
ROWS = ("kv_lens", "slot", "row", "decoding", *SETTINGS)


@dataclass(frozen=True)
class StepShape:
    """The static shape of a step; each has its own compiled program."""

    tokens: int  # T
    seqs: int  # S
    max_pages: int  # pages of the longest sequence
    images: bool = False  # whether tokens may stand for images
    spans: bool = False  # and attend to all of theirs

    @cached_property
    def parts(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Where each part lies in the packed vector, and its shape."""
        shapes: dict[str, tuple[int, ...]] = {"tokens": (self.tokens,), "q_starts": (self.seqs + 1,)}
        shapes |= {"pages": (self.seqs, self.max_pages), "num_seqs": (1,)}
        shapes |= dict.fromkeys(ROWS, (self.seqs,))
        if self.images:
            shapes |= {"positions": (3, self.tokens), "image_rows": (self.tokens,)}
        if self.spans:
            shapes["spans"] = self.tokens // 2, 3
        ends = accumulate(map(math.prod, shapes.values()), initial=0)
        return {name: (slice(*where), shape) for where, (name, shape) in zip(pairwise(ends), shapes.items())}

    @cached_property
    def size(self) -> int:
        return max(where.stop for where, _ in self.parts.values())

    def host(self) -> "HostStep":
        return HostStep(self)

    def unpack(self, packed: jax.Array) -> Batch:
        """The batch, inside a compiled step, from `[size]` int32."""
        given = {
            name: jax.lax.slice(packed, (where.start,), (where.stop,)).reshape(shape)
            for name, (where, shape) in self.parts.items()
        }
        given |= {name: jax.lax.bitcast_convert_type(given[name], jnp.float32) for name in FLOAT_ROWS}
        sampling = SamplingRows(**{name: given.pop(name) for name in SamplingRows._fields})
        return Batch(slots=given.pop("slot"), rows=given.pop("row"), sampling=sampling, **given)


class StepRows:
    """The rows of a step before they are in its vector: to append to lists costs less than to write to arrays."""

    def __init__(self) -> None:
        self.slots: list[int] = []  # of the sequence
        self.kv_lens: list[int] = []
        self.kept: list[int] = []  # the slot that keeps the sample
        self.decoding: list[bool] = []
        self.starts = [0]  # first token of each, and the end
        self.tokens: list[tuple[int, Sequence[int]]] = []  # those that the device does not have, by their first place
        self.seen: list[tuple[int, np.ndarray]] = []  # [4, n] positions and image rows, by their first token's place
        self.spans: list[tuple[int, int, int]] = []  # as `Batch` has them

    def add(self, slot: int, kv_len: int, kept: int, tokens: Sequence[int] | None) -> int:
        """Append a row; without tokens it has one, which the device has. Returns the place of its first token."""
        start = self.starts[-1]
        self.slots.append(slot)
        self.kv_lens.append(kv_len)
        self.kept.append(kept)
        self.decoding.append(tokens is None)
        if tokens is None:
            self.starts.append(start + 1)
        else:
            self.tokens.append((start, tokens))
            self.starts.append(start + len(tokens))
        return start


class HostStep:
    """The packed vector on the host: `fill` writes all of its rows at once, `add` appends one."""

    def __init__(self, shape: StepShape):
        self.shape = shape
        self.packed = np.zeros(shape.size, np.int32)
        self._part("repetition").view(np.float32)[:] = 1.0  # no penalty for padding, or every step would compute them
        self._rows = self._filled = 0
        self._page_columns = 0

    def _part(self, name: str) -> np.ndarray:
        where, dims = self.shape.parts[name]
        part = self.packed[where]
        return part if len(dims) == 1 else part.reshape(dims)

    @property
    def _settings(self) -> np.ndarray:
        """`[len(SETTINGS), S]`: they lie one after another."""
        parts = self.shape.parts
        first, last = parts[SETTINGS[0]][0], parts[SETTINGS[-1]][0]
        return self.packed[first.start : last.stop].reshape(len(SETTINGS), self.shape.seqs)

    def trimmed(self) -> tuple[int, bytes]:
        """The number of page table columns in use, and the vector without the unused ones, to send over the network.

        The table is most of the vector (a megabyte for long contexts), and in a decode step nearly all of it is zeros.
        """
        (table, _), used = self.shape.parts["pages"], self._page_columns
        pages = self._part("pages")[:, :used]
        return used, self.packed[: table.start].tobytes() + pages.tobytes() + self.packed[table.stop :].tobytes()

    @classmethod
    def whole(cls, shape: StepShape, used: int, trimmed: bytes | memoryview) -> "HostStep":
        """Rebuild the step from the result of `trimmed`; only for launching it."""
        step, (table, _) = cls(shape), shape.parts["pages"]
        given = np.frombuffer(trimmed, np.int32)
        end = table.start + shape.seqs * used
        step.packed[: table.start] = given[: table.start]
        step._part("pages")[:, :used] = given[table.start : end].reshape(shape.seqs, used)
        step.packed[table.stop :] = given[end:]
        return step

    def fill(self, rows: StepRows, settings: np.ndarray, pages: np.ndarray) -> None:
        """Write all rows of the step.

        Args:
            settings: `[len(SETTINGS), rows]` int32.
            pages: `[rows, columns]`, of which those past a sequence's last one are 0.
        """
        count, self._page_columns = pages.shape
        self._settings[:, :count] = settings
        self._part("pages")[:count, : self._page_columns] = pages
        self._part("kv_lens")[:count] = rows.kv_lens
        self._part("slot")[:count] = rows.slots
        self._part("row")[:count] = rows.kept
        self._part("decoding")[:count] = rows.decoding
        starts = self._part("q_starts")
        starts[: count + 1] = rows.starts
        starts[count + 1 :] = rows.starts[-1]
        for start, tokens in rows.tokens:
            self._part("tokens")[start : start + len(tokens)] = tokens
        self._part("num_seqs")[0] = count
        if self.shape.images:
            self._fill_images(rows)
        if self.shape.spans and rows.spans:
            self._part("spans")[: len(rows.spans)] = rows.spans

    def _fill_images(self, rows: StepRows) -> None:
        lengths, total = np.diff(rows.starts), rows.starts[-1]
        # A row's last token is the last that its cache has once the step has run.
        index = np.arange(total) + np.repeat(np.subtract(rows.kv_lens, rows.starts[1:]), lengths)
        self._part("positions")[:, :total] = index
        for start, seen in rows.seen:
            stop = start + seen.shape[1]
            self._part("positions")[:, start:stop], self._part("image_rows")[start:stop] = seen[:3], seen[3]

    def add(self, tokens: Sequence[int], kv_len: int, pages: Sequence[int], decoding: bool, **rows: float) -> int:
        """Append a sequence: the tokens to compute (a placeholder when decoding), its state row and sampling settings.

        The row is its slot, too. Returns the index of its first token in the step.
        """
        i, start, stop = self._rows, self._filled, self._filled + len(tokens)
        self._part("tokens")[start:stop] = tokens
        self._part("q_starts")[i + 1 :] = stop
        self._part("pages")[i, : len(pages)] = pages
        self._page_columns = max(self._page_columns, len(pages))
        for name, value in {"kv_lens": kv_len, "decoding": decoding, "slot": rows.get("row", 0), **rows}.items():
            part = self._part(name)
            (part.view(np.float32) if name in FLOAT_ROWS else part)[i] = value
        if self.shape.images:
            self._part("positions")[:, start:stop] = np.arange(kv_len - len(tokens), kv_len)
        self._rows, self._filled = i + 1, stop
        self._part("num_seqs")[0] = i + 1
        return start
