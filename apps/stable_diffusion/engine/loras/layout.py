"""How a component's LoRA matrices lie in arrays.

Layers of one shape share an array, or a program would have a thousand more arguments. A pool has many combinations of
LoRAs, each in a slot: the first axis. Slot 0 is all zeros, for pictures without LoRA.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from apps.stable_diffusion.engine.loras.layers import Layers, LoraLayer, grouped, layers_of
from apps.stable_diffusion.engine.model.low_rank import LoraPair
from apps.stable_diffusion.engine.model.weights import NamedWeights

Pool = Mapping[str, LoraPair]
"""A component's matrices by the shape of their layers: down [slots, layers, ..., rank, in], up [slots, layers, rank,
out]."""


def forms(layers: Layers, slots: int, rank: int, dtype: Any, sharding: Any) -> Pool:
    """Shapes of a component's pool."""
    counts: dict[str, int] = {}
    kinds: dict[str, LoraLayer] = {}
    for layer in layers.values():
        counts[layer.group] = counts.get(layer.group, 0) + 1
        kinds[layer.group] = layer
    return {
        group: LoraPair(
            *(  # type: ignore[arg-type]  # shapes in the arrays' places
                jax.ShapeDtypeStruct((slots, counts[group], *shape), dtype, sharding=sharding)
                for shape in layer.shapes(rank)
            )
        )
        for group, layer in kinds.items()
    }


def zeros(pool: Pool) -> Pool:
    """The same shapes as arrays of the host."""
    return jax.tree.map(lambda form: np.zeros(form.shape, form.dtype), pool)


def written(pool: Mapping[str, Pool], one: Mapping[str, Pool], slot: jax.Array) -> Mapping[str, Pool]:
    """Components' pools with a combination in a slot; a program, which is given the pools' memory.

    Args:
        one: pools of a single slot.
    """
    return jax.tree.map(lambda old, new: old.at[slot].set(new[0]), pool, one)


class AdaptedWeights(NamedWeights):
    """A component's weights with the LoRA of each row of a batch.

    Args:
        rows: [n] int32, the slot in the pool of each row.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        pool: Pool,
        rows: jax.Array,
        prefix: str = "",
        where: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(arrays, prefix)
        self._pool, self._rows = pool, rows
        self._where = grouped(layers_of(arrays)) if where is None else where

    def __getitem__(self, name: str | int) -> "AdaptedWeights":
        return AdaptedWeights(self._arrays, self._pool, self._rows, f"{self._prefix}{name}.", self._where)

    @property
    def low_rank(self) -> LoraPair:
        group, place = self._where[self._prefix[:-1]]
        return LoraPair(*(part[self._rows, place] for part in self._pool[group]))


def adapted(arrays: Mapping[str, jax.Array], pool: Pool | None, rows: jax.Array | None) -> NamedWeights:
    """A component's weights, with the rows' LoRA if there is a pool."""
    return NamedWeights(arrays) if pool is None or rows is None else AdaptedWeights(arrays, pool, rows)


def joined(layers: Layers, pool: Pool, parts: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]]) -> Pool:
    """One combination's matrices, side by side along the rank, and zeros after them.

    Args:
        pool: shapes of a pool of a single slot.
        parts: layer -> the down and up matrices of each LoRA, in the shapes of `LoraLayer.shapes`; up is scaled.
    """
    arrays, where = zeros(pool), grouped(layers)
    for name, pairs in parts.items():
        group, place = where[name]
        begin = 0
        for down, up in pairs:
            end = begin + len(up)
            arrays[group].down[0, place, ..., begin:end, :] = down
            arrays[group].up[0, place, begin:end] = up
            begin = end
    return arrays
