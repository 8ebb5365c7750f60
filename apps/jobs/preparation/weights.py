"""Computes the files of the weights: what each holds, and its bytes, a piece at a time."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from apps.arrays.quantization import quantize_rows
from apps.arrays.reading import ALIGNMENT
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.param import Param
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.prepared import SCALE, STORED_DTYPES, StoredTensor
from apps.llm.engine.weights.prepared_shards import by_columns, stored_params

PIECE = 32 * 2**20
"""Bytes that are read and converted at once."""
DTYPE_NAMES = {dtype: name for name, dtype in STORED_DTYPES.items()}


@dataclass(frozen=True)
class _Array:
    """One tensor of a file, before its offset is known."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class StoredWeights:
    """A model's parameters in the order of `tensor_parallel` devices: see `apps.llm.engine.weights.prepared`."""

    def __init__(
        self, source: Checkpoint, arch: Architecture, dtype: jnp.dtype, int8: bool, tensor_parallel: int
    ) -> None:
        self._source, self._dtype, self._int8, self._blocks = source, np.dtype(dtype), int8, tensor_parallel
        self._params = stored_params(arch, tensor_parallel)
        self.files: dict[str, list[str]] = {}
        """Names of the parameters in each file."""
        for name in self._params:
            self.files.setdefault(_file_of(name), []).append(name)
        self._headers: dict[str, bytes] = {}
        self.tensors: dict[str, StoredTensor] = {}
        """As the manifest lists them."""
        for file, names in self.files.items():
            # Tensors of odd size come last, so that all others are aligned.
            names.sort(key=lambda name: any(array.nbytes % ALIGNMENT for array in self._arrays(name)))
            self._lay_out(file, names)

    def _lay_out(self, file: str, names: list[str]) -> None:
        entries: dict[str, dict[str, Any]] = {}
        at = 0
        arrays = [(name, array) for name in names for array in self._arrays(name)]
        for _, array in arrays:
            offsets = [at, at + array.nbytes]
            entries[array.name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": array.shape, "data_offsets": offsets}
            at += array.nbytes
        text = json.dumps(entries).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = self._headers[file] = len(text).to_bytes(8, "little") + text
        for name, array in arrays:
            first, last = entries[array.name]["data_offsets"]
            self.tensors[array.name] = StoredTensor(
                file=file,
                dtype=DTYPE_NAMES[array.dtype],
                shape=array.shape,
                start=len(header) + first,
                stop=len(header) + last,
                split="columns" if by_columns(self._params[name]) and not array.name.endswith(SCALE) else "rows",
            )

    def _arrays(self, name: str) -> list[_Array]:
        """A parameter's tensors: its values, and their scales if it is quantized."""
        param = self._params[name]
        shape = param.shape
        if by_columns(param):
            shape = self._blocks * shape[0], shape[1] // self._blocks
        if not (self._int8 and param.matrix):
            return [_Array(name, self._dtype, shape)]
        return [
            _Array(name, np.dtype(np.int8), shape),
            _Array(name + SCALE, np.dtype(np.float32), param.shape[:1]),
        ]

    def size(self, file: str) -> int:
        """Bytes of a file."""
        return len(self._headers[file]) + sum(array.nbytes for name in self.files[file] for array in self._arrays(name))

    def content(self, file: str) -> Iterator[bytes | memoryview]:
        """A file's bytes, in order, as one-dimensional buffers."""
        yield self._headers[file]
        for name in self.files[file]:
            for array in self._read(self._params[name]):
                yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def _read(self, param: Param) -> Iterator[np.ndarray]:
        """A parameter's values in the order that they are stored in, then their scales, if it is quantized."""
        in_blocks = by_columns(param) and self._blocks > 1
        whole, scales = None, []
        for first, last in _pieces(param.shape[0], math.prod(param.shape[1:]) * self._dtype.itemsize):
            index = slice(first, last), *(slice(None) for _ in param.shape[1:])
            piece = np.ascontiguousarray(param.read(self._source, index))
            read_as = param.read_dtype(self._dtype, self._int8, self._source)
            piece = piece.astype(read_as, copy=False)
            if self._int8 and param.matrix:
                # Each row is rounded by itself, so pieces give the same as the whole.
                piece, scale = quantize_rows(piece)
                scales.append(scale)
                param.check(self._source, scale, read_as)
            else:
                param.check(self._source, piece, read_as)
            if not in_blocks:
                yield piece
                continue
            if whole is None:
                whole = np.empty((self._blocks, param.shape[0], param.shape[1] // self._blocks), piece.dtype)
            whole[:, first:last] = piece.reshape(last - first, self._blocks, -1).swapaxes(0, 1)
        if whole is not None:
            yield whole
        yield from scales


def _pieces(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about PIECE bytes, as even as possible: a program is compiled for each size."""
    count = min(rows, -(-rows * row_bytes // PIECE))
    for i in range(count):
        yield rows * i // count, rows * (i + 1) // count


def _file_of(name: str) -> str:
    first, *rest = name.split(".")
    if first == "layers":
        return f"layer-{int(rest[0]):05}.safetensors"
    return "embed.safetensors" if first == "embed" else "head.safetensors"
