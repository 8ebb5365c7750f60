"""Reads a prepared checkpoint's tensors as a mesh has them: each device's shard, from the files' byte ranges."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.arrays.model_folder import CheckpointError
from apps.arrays.quantization import QuantArray, quantize_rows
from apps.arrays.reading import Index, ParamLoader
from apps.arrays.row_ranges import clipped, positions
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.param import MESH_AXES, Param, Params
from apps.llm.engine.model.params import abstract, loaded, named
from apps.llm.engine.model.split import Split
from apps.llm.engine.weights.prepared import SCALE, Prepared
from apps.serving.numbers.finite import all_finite


def by_columns(param: Param) -> bool:
    """Whether the engine splits the parameter by columns."""
    return any(axis is not None and MESH_AXES.get(axis) for axis in param.axes[1:])


def stored_params(arch: Architecture, tensor_parallel: int) -> dict[str, Param]:
    """The parameters as stored, by name. Key/value heads are stored once, even if the mesh repeats them."""
    return named(declare(arch, Split(tensor_parallel, repeats_heads=False)))


class PreparedShards:
    """A prepared checkpoint's parameters, in their stored types."""

    def __init__(self, checkpoint: Prepared):
        self._checkpoint = checkpoint
        self._stored = stored_params(checkpoint.architecture(), checkpoint.manifest.tensor_parallel)

    def values(self, name: str, wanted: Param, index: tuple[slice, ...]) -> np.ndarray:
        """A shard of a parameter in its stored type; `index` slices the shape that it has on the mesh."""
        if by_columns(wanted):
            return self._columns(name, index)
        return self._rows(name, self._stored[name].shape, wanted, index)

    def scale(self, name: str, wanted: Param, index: tuple[slice, ...]) -> np.ndarray:
        """The same shard's scales, `[rows]` float32."""
        return self._rows(name + SCALE, self._stored[name].shape[:1], wanted, index)

    def _rows(self, name: str, shape: tuple[int, ...], wanted: Param, index: tuple[slice, ...]) -> np.ndarray:
        first, last, _ = index[0].indices(wanted.shape[0])
        stored = self._stored[name.removesuffix(SCALE)].source
        ranges = positions(stored, clipped(wanted.source, first, last))
        parts = [self._checkpoint.stored(name, slice(*rows), shape) for rows in ranges]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # Experts are stored whole. A shard has the same columns of all its own.
        columns = wanted.source[0].columns and next(clipped(wanted.source, first, last)).columns
        return wanted.filled(whole[:, slice(*columns)]) if columns and whole.ndim == 2 else whole

    def _columns(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        out, columns = self._stored[name].shape
        blocks = self._checkpoint.manifest.tensor_parallel
        width = columns // blocks
        (top, bottom, _), (first, last, _) = index[0].indices(out), index[1].indices(columns)
        inside = range(first // width, -(-last // width))
        shape = blocks * out, width
        if (top, bottom) == (0, out):  # whole blocks are contiguous
            rows = slice(inside.start * out, inside.stop * out)
            found = self._checkpoint.stored(name, rows, shape).reshape(-1, out, width)
        else:
            rows_of = (slice(block * out + top, block * out + bottom) for block in inside)
            found = np.stack([self._checkpoint.stored(name, rows, shape) for rows in rows_of])
        joined = found[0] if len(inside) == 1 else found.swapaxes(0, 1).reshape(bottom - top, -1)
        return joined[:, first - inside.start * width : last - inside.start * width]


def load(tree: Params, checkpoint: Prepared, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Params:
    """As `params.load`. int8 weights stay int8 whatever `int8` says; it quantizes the others."""
    shards = PreparedShards(checkpoint)
    # CPU devices use the mapped files themselves.
    mapped = checkpoint.is_local and mesh.devices.flat[0].platform == "cpu"

    def reading(name: str, param: Param) -> ParamLoader:
        stored_int8 = name + SCALE in checkpoint.tensors
        form = abstract(param, mesh, dtype, int8 or stored_int8)
        quantizes = isinstance(form, QuantArray) and not stored_int8
        # Blocks of columns are byte ranges, so the devices need not exchange what they have read.
        exchange = by_columns(param) and (quantizes or checkpoint.manifest.tensor_parallel % mesh.size != 0)

        def read(index: Index) -> Sequence[np.ndarray]:
            read = [shards.values(name, param, index)]
            if stored_int8:
                read.append(shards.scale(name, param, index[:1]))
            elif quantizes:
                read = list(quantize_rows(read[0]))
            else:
                read = [read[0].astype(form.dtype, copy=False)]
            if not all(map(all_finite, read)):
                raise CheckpointError(f"{checkpoint.location}: tensor {name} has numbers that are not finite: damaged")
            return read

        return ParamLoader(form, read, whole_rows=quantizes, exchange=exchange, in_place=mapped and not quantizes)

    return loaded(tree, reading, checkpoint.is_local)
