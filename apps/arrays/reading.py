"""Reads parameters from a checkpoint into this host's memory: in pieces, by several threads, ahead of their use."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from apps.arrays.programs import ProgramSpec
from apps.arrays.quantization import QuantArray, Weight

Index = tuple[slice, ...]
Bounds = tuple[tuple[int, int], ...]

PIECE = 2 << 20
"""Values that a thread reads at once: a request for 4 MiB of bfloat16, if they lie in a bucket."""
AHEAD = 256 << 20
"""Bytes of parameters that are read before their turn."""
REMOTE_READERS = 16
"""Threads that wait for a bucket. Files keep as many busy as there are cores, up to this."""
ALIGNMENT = 64
"""Bytes: JAX on a CPU uses an array in place if its address is a multiple of this."""


class ParamLoader:
    """A parameter on its way from the checkpoint to the devices.

    Args:
        form: its shape, type and sharding, as `params.abstract` gives them.
        read: reads the part at an index, by several threads: its values and, if it is quantized, its rows' scales.
        whole_rows: read all columns, even of a matrix that is split by columns.
        exchange: read a share of the rows on each host where all hosts would read the same ones; the devices then
            exchange what they have. Files are stored row by row, so this reads less where columns are split.
        in_place: keep what `read` returns, which is mapped, instead of reading pieces into new memory.
    """

    def __init__(
        self,
        form: Weight,
        read: Callable[[Index], Sequence[np.ndarray]],
        whole_rows: bool,
        exchange: bool,
        in_place: bool = False,
    ):
        self._read, self._whole_rows, self._in_place = read, whole_rows, in_place
        self._leaves = jax.tree.leaves(form)
        values = self._leaves[0]
        mesh, spec = values.sharding.mesh, values.sharding.spec
        hosts = len({device.process_index for device in mesh.devices.flat})
        self._by_rows = exchange and hosts > 1 and any(spec[1:]) and values.shape[0] % mesh.size == 0
        indices = self._read_sharding(values).addressable_devices_indices_map(values.shape).values()
        self._blocks = {bounds: self._block(bounds) for bounds in map(self._bounds, indices)}  # type: ignore[arg-type]  # an index is None only of an array without dimensions
        self.nbytes = 0 if in_place else sum(array.nbytes for block in self._blocks.values() for array in block)

    def _block(self, bounds: Bounds) -> Sequence[np.ndarray]:
        if self._in_place:
            return self._read(tuple(slice(*side) for side in bounds))
        size = tuple(stop - start for start, stop in bounds)
        return [_zeros(size[: len(leaf.shape)], leaf.dtype) for leaf in self._leaves]

    def pieces(self) -> Iterator[Callable[[], None]]:
        """What has to be run, in any order and by any thread, before `placed`."""
        for ((start, stop), *columns), block in () if self._in_place else self._blocks.items():
            rows = max(1, PIECE * (stop - start) // block[0].size)
            for first in range(start, stop, rows):
                last = min(first + rows, stop)
                index = slice(first, last), *(slice(*side) for side in columns)
                yield partial(self._read_into, index, [array[first - start : last - start] for array in block])

    def _read_into(self, index: Index, block: Sequence[np.ndarray]) -> None:
        for array, rows in zip(block, self._read(index), strict=True):
            # As bits: NumPy does not let other threads run while it copies a type of ml_dtypes.
            bits = f"u{array.itemsize}"
            if rows.dtype == array.dtype:
                array, rows = array.view(bits), rows.view(bits)
            array[...] = rows

    def placed(self) -> Weight:
        """The parameter on its devices."""
        # One at a time: CPU devices of several processes deadlock when programs with collectives (the exchange of
        # rows) pile up.
        arrays = [jax.block_until_ready(self._placed(number)) for number in range(len(self._leaves))]
        return QuantArray(*arrays) if len(arrays) > 1 else arrays[0]

    def _placed(self, number: int) -> jax.Array:
        leaf = self._leaves[number]
        of_rows = {bounds[0]: block for bounds, block in self._blocks.items()}

        def shard(index: Index) -> np.ndarray:
            bounds = self._bounds(index)
            block = self._blocks[bounds] if bounds in self._blocks else of_rows[bounds[0]]
            columns = index[1:] if self._whole_rows else ()
            return np.ascontiguousarray(block[number][(slice(None), *columns)])

        array = jax.make_array_from_callback(leaf.shape, self._read_sharding(leaf), shard)  # type: ignore[arg-type]  # an index is None only of an array without dimensions
        return _exchange(leaf)(array) if self._by_rows else array

    def _read_sharding(self, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return _by_rows(leaf) if self._by_rows else leaf.sharding

    def _bounds(self, index: Index) -> Bounds:
        shape = self._leaves[0].shape
        bounds = tuple(side.indices(size)[:2] for side, size in zip(index, shape))
        return (bounds[0], *((0, size) for size in shape[1:])) if self._whole_rows else bounds


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that no memory is taken for before they are written, where JAX on a CPU can use them in place."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _by_rows(form: jax.ShapeDtypeStruct) -> NamedSharding:
    return NamedSharding(form.sharding.mesh, PartitionSpec("tensor"))


@cache
def _exchange(form: jax.ShapeDtypeStruct) -> jax.stages.Compiled:
    """The program that makes an array of this form from one that is split by rows."""
    rows = jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=_by_rows(form))
    return ProgramSpec(("exchange",), lambda array: array, (rows,), out_shardings=form.sharding).compiled()


def read_ahead(readings: Iterable[ParamLoader], local: bool) -> Iterator[ParamLoader]:
    """Run the pieces of all readings, and yield each reading when its own are done, in order.

    Args:
        local: the checkpoint's files are on this machine.
    """
    readers = min(os.cpu_count() or 1, REMOTE_READERS) if local else REMOTE_READERS
    begun: deque[tuple[ParamLoader, list[Future[None]]]] = deque()

    def first() -> ParamLoader:
        reading, pieces = begun.popleft()
        for piece in pieces:
            piece.result()
        return reading

    pool = ThreadPoolExecutor(readers, "reading weights")
    try:
        for reading in readings:
            while begun and sum(other.nbytes for other, _ in begun) + reading.nbytes > AHEAD:
                yield first()
            begun.append((reading, [pool.submit(piece) for piece in reading.pieces()]))
        while begun:
            yield first()
    finally:
        pool.shutdown(cancel_futures=True)
