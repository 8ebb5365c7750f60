"""Quantized weights as the hub ships them, read as float32: FP8, compressed-tensors, AWQ and GPTQ; MXFP4 is in
`packed_experts`.

What a tensor `NAME.weight` of such a checkpoint is stored as:

- FP8, and compressed-tensors of 8 bits: `NAME.weight` in FP8 or int8, and its scale for the tensor, for each row, or
  for each block of rows and columns, `NAME.weight_scale` or `NAME.weight_scale_inv`; an asymmetric one has
  `NAME.weight_zero_point`.
- compressed-tensors of 4 bits: `NAME.weight_packed`, int32 words of neighbouring columns, and a scale for each row and
  group of columns, `NAME.weight_scale`; an asymmetric one has `NAME.weight_zero_point`, packed along the rows.
- AWQ and GPTQ: `NAME.qweight`, transposed; AWQ's words are of neighbouring outputs, GPTQ's of neighbouring inputs.
  `NAME.qzeros` and `NAME.scales` are for each group of inputs and each output.

Sources: https://github.com/vllm-project/compressed-tensors (compressors), https://github.com/casper-hansen/AutoAWQ
(packing_utils.py), https://github.com/ModelCloud/GPTQModel (qlinear), transformers' quantizers.
"""

import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from apps.arrays.model_folder import CheckpointError, TensorEntry

ALL = slice(None)
WORD = 32
"""Bits of a word of packed values."""
AWQ_ORDER = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
"""The place in an AWQ word of each of its eight columns."""
BLOCK = (128, 128)
SCALES = "weight_scale_inv", "weight_scale"
PIECE = 1 << 16
"""Weights that a core dequantizes at once."""


class Tensors(Protocol):
    """What a format needs of a checkpoint."""

    location: str
    is_local: bool

    @property
    def tensors(self) -> Mapping[str, TensorEntry]: ...

    def part(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Rows of a tensor, as the file has them."""
        ...


@dataclass(frozen=True)
class QuantizedFormat:
    """How a checkpoint's quantized tensors are read. The tensors' names say which of them are quantized."""

    block: tuple[int, int] = BLOCK
    """Rows and columns of one scale where a scale is for a block."""
    bits: int = 4
    """Of AWQ's and GPTQ's values."""
    awq: bool = False
    zero_offset: int = 0
    """Added to the zero points in the file: GPTQ stores each one too small by 1."""

    def read(self, checkpoint: Tensors, name: str, shape: tuple[int, ...], rows: slice) -> np.ndarray | None:
        """Rows of a tensor in float32; None if it is not quantized.

        Args:
            shape: of the whole tensor, `[out, in]`.

        Raises:
            CheckpointError: its parts are missing, or their shapes do not fit `shape`.
        """
        parts = _Parts(checkpoint, name.removesuffix(".weight"), shape)
        scale = next((part for part in SCALES if parts.has(part)), None)
        if parts.has("qweight"):
            stored = self._transposed(parts, rows)
        elif parts.has("weight_packed"):
            stored = _packed(parts, rows)
        elif scale is not None:
            stored = self._scaled(parts, scale, rows)
        else:
            return None
        return stored.weights()

    def _scaled(self, parts: "_Parts", scale: str, rows: slice) -> "QuantizedRows":
        parts.expect("weight", parts.shape)
        zeros = self._of_rows(parts, "weight_zero_point", rows) if parts.has("weight_zero_point") else None
        return QuantizedRows(parts.read("weight", rows), self._of_rows(parts, scale, rows), zeros)

    def _of_rows(self, parts: "_Parts", name: str, rows: slice) -> np.ndarray:
        """The scales or zero points of each row: `[rows, groups]` float32."""
        (height, width), size = parts.shape, parts.entry(name).shape
        blocks = -(-height // self.block[0]), -(-width // self.block[1])
        if math.prod(size) == 1:
            tall = height
        elif size in ((height,), (height, 1)) or (len(size) == 2 and size[0] == height and width % size[1] == 0):
            tall = 1
        elif size == blocks:
            tall = self.block[0]
        else:
            raise parts.wrong(name, blocks)
        first, last, _ = rows.indices(height)
        each = _floats(parts.read(name)).reshape(-(-height // tall), -1)[np.arange(first, last) // tall]
        even = each.shape[1] == 1 or width % self.block[1] == 0 or size != blocks
        return each if even else np.repeat(each, self.block[1], axis=1)[:, :width]

    def _transposed(self, parts: "_Parts", rows: slice) -> "QuantizedRows":
        (height, width), bits, per_word = parts.shape, self.bits, WORD // self.bits
        parts.expect("qweight", (width, height // per_word) if self.awq else (width // per_word, height))
        groups = parts.entry("scales").shape[0]
        parts.expect("scales", (groups, height))
        parts.expect("qzeros", (groups, height // per_word))
        first, last, _ = rows.indices(height)
        words = slice(first // per_word, -(-last // per_word))
        inside = slice(first - words.start * per_word, last - words.start * per_word)

        def outputs(part: str) -> np.ndarray:
            """Values packed along the outputs: `[..., rows]`."""
            found = unpacked(parts.read(part)[:, words], bits)
            if self.awq:
                found = found.reshape(len(found), -1, len(AWQ_ORDER))[:, :, AWQ_ORDER].reshape(len(found), -1)
            return found[:, inside]

        if self.awq:
            values = np.ascontiguousarray(outputs("qweight").T)
        else:
            values = unpacked(np.ascontiguousarray(parts.read("qweight")[:, first:last].T), bits)
        zeros = _floats(outputs("qzeros")) + self.zero_offset
        return QuantizedRows(
            values, _floats(parts.read("scales")[:, first:last]).T, zeros.T, parts.groups("g_idx", groups)
        )


@dataclass(frozen=True)
class _Parts:
    """The tensors that stand for one of a model's, `BASE.weight` of `[out, in]`."""

    checkpoint: Tensors
    base: str
    shape: tuple[int, ...]

    def has(self, part: str) -> bool:
        return f"{self.base}.{part}" in self.checkpoint.tensors

    def entry(self, part: str) -> TensorEntry:
        try:
            return self.checkpoint.tensors[f"{self.base}.{part}"]
        except KeyError:
            where = self.checkpoint.location
            raise CheckpointError(f"{where}: tensor {self.base}.{part} is missing from the safetensors files") from None

    def read(self, part: str, rows: slice = ALL) -> np.ndarray:
        return self.checkpoint.part(f"{self.base}.{part}", rows)

    def groups(self, part: str, count: int) -> np.ndarray | None:
        """The group of each input, `[in]`; None where they are in order, each as large as the others."""
        width = self.shape[1]
        if not self.has(part):
            return None
        group = self.read(part)
        if group.shape != (width,) or group.min() < 0 or group.max() >= count:
            raise self.wrong(part, (width,))
        return None if np.array_equal(group, np.arange(width) // -(-width // count)) else group

    def expect(self, part: str, shape: tuple[int, ...]) -> None:
        if self.entry(part).shape != shape:
            raise self.wrong(part, shape)

    def wrong(self, part: str, shape: tuple[int, ...]) -> CheckpointError:
        entry = self.entry(part)
        return CheckpointError(
            f"{self.checkpoint.location}/{entry.file}: tensor {self.base}.{part} has shape {entry.shape}, but a weight "
            f"of {self.shape}, which config.json implies, needs {shape}"
        )


def _packed(parts: _Parts, rows: slice) -> "QuantizedRows":
    height, width = parts.shape
    bits = WORD * parts.entry("weight_packed").shape[-1] // width
    if bits not in (2, 4, 8):
        raise parts.wrong("weight_packed", (height, width * 4 // WORD))
    parts.expect("weight_packed", (height, -(-width * bits // WORD)))
    groups = parts.entry("weight_scale").shape[-1]
    parts.expect("weight_scale", (height, groups))
    scales = _floats(parts.read("weight_scale", rows))
    zeros = np.full((1, 1), 1 << bits - 1, np.float32)
    if parts.has("weight_zero_point"):
        parts.expect("weight_zero_point", (-(-height * bits // WORD), groups))
        zeros = _floats(unpacked(np.ascontiguousarray(parts.read("weight_zero_point").T), bits).T[:height][rows])
    values = unpacked(parts.read("weight_packed", rows), bits)[:, :width]
    return QuantizedRows(values, scales, zeros, parts.groups("weight_g_idx", groups))


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """The unsigned values in int32 words, or bytes, lowest bits first: `[rows, words]` -> `[rows, values]` uint8."""
    data = np.ascontiguousarray(words)
    if data.dtype != np.uint8:
        data = data.astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return data
    shifts = np.arange(0, 8, bits)
    table = (np.arange(256)[:, None] >> shifts & (1 << bits) - 1).astype(np.uint8)
    return table.view(f"<u{len(shifts)}")[:, 0][data].view(np.uint8)  # a byte's values are looked up at once


def _floats(values: np.ndarray) -> np.ndarray:
    if values.dtype.itemsize > 1:
        return values.astype(np.float32)
    return np.arange(256, dtype=np.uint8).view(values.dtype).astype(np.float32)[values.view(np.uint8)]


@dataclass(frozen=True)
class QuantizedRows:
    """Quantized rows: (value - zero) * scale."""

    values: np.ndarray  # [rows, in], of one byte each
    scales: np.ndarray  # [rows, groups]
    zeros: np.ndarray | None  # as the scales, or [1, 1]
    group: np.ndarray | None = None  # of each input; None: groups of equal size, in order

    def weights(self) -> np.ndarray:
        """`[rows, in]` float32, by all cores, in pieces that fit into their caches."""
        rows, width = self.values.shape
        made = np.empty((rows, width), np.float32)
        step = max(1, PIECE // width)

        def fill(first: int) -> None:
            piece = slice(first, first + step)
            scales = self.scales[piece]
            zeros = self.zeros if self.zeros is None or len(self.zeros) == 1 else self.zeros[piece]
            if self.group is not None:
                scales = scales[:, self.group]
                zeros = zeros if zeros is None or zeros.shape == (1, 1) else zeros[:, self.group]
            out = made[piece]
            out[:] = _floats(self.values[piece])
            out = out.reshape(*scales.shape, -1)
            if zeros is not None:
                out -= zeros[:, :, None]
            out *= scales[:, :, None]

        list(_pool().map(fill, range(0, rows, step)))
        return made


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "dequantizing")
