"""One parameter of the decoder: its shape, logical axes, initialiser and source in a checkpoint."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from apps.arrays.model_folder import CheckpointError
from apps.arrays.row_ranges import Rows, Source, clipped, joined
from apps.llm.engine.model.layers import Norm
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.serving.numbers.finite import all_finite

MESH_AXES = {"vocab": "tensor", "kv_heads": "tensor", "mlp": "tensor", "experts": "tensor", "embed": None}
"""Logical axis -> mesh axis."""
Params = dict[str, Any]
"""A tree of parameters: declared, abstract, or arrays."""


@dataclass(frozen=True)
class Param:
    """One parameter; `axes` holds each axis's logical name (None: never split)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    source: Source
    matrix: bool = False  # `[out, in]`; int8 quantization applies to it
    constant: float | None = None  # value of its random weights; None: normal noise
    wide: bool = False  # kept in float32 whatever the model's type, because it is only used in float32
    bound: bool = False  # of a range, which may be without one

    def dtype(self, model: jnp.dtype) -> jnp.dtype:
        """The type it is kept in, before any quantization."""
        return jnp.dtype(jnp.float32) if self.wide else model

    def read_dtype(self, model: jnp.dtype, int8: bool, checkpoint: Checkpoint) -> jnp.dtype:
        """The type that its values have before any quantization, so that all ways to load it give the same.

        Those of a quantized checkpoint are not rounded to the model's type on their way to int8.
        """
        wide = int8 and self.matrix and checkpoint.format is not None
        return jnp.dtype(jnp.float32) if wide else model

    def spec(self, mesh: Mesh) -> PartitionSpec:
        """How it is split over the mesh. An axis that does not divide is replicated."""
        names = (MESH_AXES.get(axis) if axis else None for axis in self.axes)
        return PartitionSpec(
            *(name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, self.shape))
        )

    def read(self, checkpoint: Checkpoint, index: tuple[slice, ...]) -> np.ndarray:
        """Read one shard, given as slices of the declared shape."""
        first, last, _ = index[0].indices(self.shape[0])
        rows = list(clipped(self.source, first, last))
        # A head's rows are few: those of a tensor are read at once, whatever the order that the parameter has them in.
        runs = [(run, checkpoint.read(run.tensor, run.shape, slice(run.start, run.stop))) for run in joined(rows)]
        parts = []
        for part in rows:
            run, values = next(found for found in runs if found[0].tensor == part.tensor and found[0].stop >= part.stop)
            parts.append(values[part.start - run.start : part.stop - run.start][..., slice(*(part.columns or (None,)))])
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self.filled(whole)[(slice(None), *index[1:])]

    def check(self, checkpoint: Checkpoint, values: np.ndarray, dtype: jnp.dtype) -> None:
        """Check what was read of a checkpoint, or the scales that int8 quantization makes of it.

        Args:
            dtype: that it was read in: what is too large for that is infinite.

        Raises:
            CheckpointError: a number is not finite; names the tensor.
        """
        if all_finite(values) or (self.bound and not np.isnan(values).any()):
            return
        names = list(dict.fromkeys(part.tensor for part in self.source))
        bad = [name for name in names if not _finite_in(checkpoint, name, self, dtype)]
        raise CheckpointError(
            f"{checkpoint.location}: tensor {' or '.join((bad or names)[:3])} has numbers that are not finite (NaN or "
            f"infinity, or too large for the type that they are kept in): the file is damaged, or its training failed"
        )

    def filled(self, rows: np.ndarray) -> np.ndarray:
        """Whole rows of the source, with zeros after them where the parameter's are longer."""
        more = self.shape[-1] - rows.shape[-1] if rows.ndim == 2 else 0
        return np.pad(rows, ((0, 0), (0, more))) if more else rows


def tensor(name: str, *shape: int) -> Source:
    """A whole tensor, in file order."""
    return (Rows(name, shape, 0, shape[0]),)


def bias(name: str, size: int) -> Param:
    """A bias on every device."""
    return Param((size,), (None,), tensor(name, size), constant=0.0, wide=True)


def norm_weight(norm: Norm, name: str, size: int) -> Param:
    """A norm's weight, on every device, in the type that `pointwise.norm` multiplies in."""
    fill = 0.0 if norm.plus_one else 1.0
    return Param((size,), (None,), tensor(name, size), constant=fill, wide=norm.wide_weight)


def stream_norm(norm: Norm, key: str, name: str, size: int) -> Params:
    """One of the residual stream's norms: its weight under `key`, and a LayerNorm's bias."""
    more = {f"{key}_bias": bias(f"{name}.bias", size)} if norm.kind == "layer" else {}
    return {key: norm_weight(norm, f"{name}.weight", size)} | more


def _finite_in(checkpoint: Checkpoint, name: str, param: Param, dtype: jnp.dtype) -> bool:
    """Whether a tensor of the checkpoint has only finite numbers in a type."""
    parts = [part for part in param.source if part.tensor == name]
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            all_finite(checkpoint.read(name, part.shape, slice(part.start, part.stop)).astype(dtype))
            for part in joined(parts)
        )
