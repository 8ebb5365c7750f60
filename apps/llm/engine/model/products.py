"""Matrix products and embedding lookups with weights split over a mesh, and the collectives that they need."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.arrays import quantization
from apps.arrays.collectives import AXIS, gathered, scattered, total
from apps.arrays.quantization import QuantArray, Weight, values
from apps.llm.engine import kernels
from apps.llm.engine.adapters.low_rank import LowRank, Owned, delta

TILE = 8
"""A device's share of the tokens must be a multiple of this. For other shares the TPU compiler makes no reduce-scatter
but an all-reduce and a slice, which saves no bytes and takes more exchanges."""


def splits_by_token(tokens: int, devices: int) -> bool:
    """Whether a step of `tokens` tokens is split by token between products, not replicated on every device.

    Norms and residual sums are then computed once, not on every device, and activations are gathered after the norm,
    in the model's type. (Sequence parallelism in Korthikanti et al. 2022, "Reducing activation recomputation in large
    transformer models".)
    """
    return devices > 1 and tokens % (TILE * devices) == 0


def product(
    x: jax.Array, weight: Weight, mesh: Mesh, bias: jax.Array | None = None, num_rows: jax.Array | None = None
) -> jax.Array:
    """`[tokens, in]` times `[out, in]`, plus bias -> `[tokens, out]` float32; a weight split along `out` splits it so.

    Args:
        num_rows: `[1]`, the rows that are wanted, the first ones: the others may be 0. Default: all.
    """
    return quantization.product(x, weight, bias, partial(kernels.multiplied, mesh=mesh, num_rows=num_rows))


def row_parallel(
    x: jax.Array,
    weight: Weight,
    bias: jax.Array | None,
    mesh: Mesh,
    by_token: bool,
    adapted: Owned | None = None,
    num_rows: jax.Array | None = None,
) -> jax.Array:
    """`product`, in x's type, with x and the weight split along `in`; see `add_up` for how the result is split.

    Args:
        adapted: adapters that add to the product, their A split like the weight.
        num_rows: as `product` takes it.
    """
    if mesh.size == 1:
        return _with_adapters(product(x, weight, mesh, bias, num_rows), x, adapted).astype(x.dtype)
    parts = (
        QuantArray(P(None, AXIS), P()) if isinstance(weight, QuantArray) else P(None, AXIS)
    )  # a tree of the same form, of specs

    def own(x: jax.Array, weight: Weight, adapted: Owned | None) -> jax.Array:
        # Linear in x, so each device adds what its own part of x gives, and the sum needs no exchange of its own.
        y = _with_adapters(quantization.product(x, weight), x, adapted)
        # XLA by itself moves the cast before an all-reduce, but not before a reduce-scatter.
        return add_up(y.astype(x.dtype) if by_token else y, mesh, by_token)

    spec = None if adapted is None else (LowRank(P(None, None, None, AXIS), P()), P())
    places = (P(None, AXIS), parts, spec), P(AXIS if by_token else None)
    y = jax.shard_map(own, mesh=mesh, in_specs=places[0], out_specs=places[1], check_vma=False)(x, weight, adapted)
    y = y.astype(x.dtype)
    return y if bias is None else (y + bias).astype(x.dtype)


def _with_adapters(y: jax.Array, x: jax.Array, adapted: Owned | None) -> jax.Array:
    return y if adapted is None else y + delta(x, adapted)[0]


def add_up(x: jax.Array, mesh: Mesh, by_token: bool) -> jax.Array:
    """Inside `shard_map`: the sum of each device's `[tokens, ...]`, split by token or replicated."""
    return scattered(x, mesh) if by_token else total(x, mesh)


def whole(x: jax.Array, mesh: Mesh, by_token: bool) -> jax.Array:
    """`[tokens, ...]` replicated on every device; gathers it if it is split by token."""
    if not by_token:
        return x
    return jax.shard_map(lambda x: gathered(x, mesh), mesh=mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False)(x)


def rows(table: Weight, ids: jax.Array, dtype: jnp.dtype, mesh: Mesh, by_token: bool = False) -> jax.Array:
    """Rows of an embedding table: `[vocab, hidden]`, `[tokens]` -> `[tokens, hidden]`, split as `add_up` says."""
    vocab = values(table).shape[0]
    if mesh.size == 1 or vocab % mesh.size:  # a table that does not divide is replicated
        return _rows(table, ids, dtype)
    share = vocab // mesh.size

    def own(table: Weight, ids: jax.Array) -> jax.Array:
        ids = ids - jax.lax.axis_index(AXIS) * share
        found = _rows(table, jnp.clip(ids, 0, share - 1), dtype)
        return add_up(jnp.where(((ids >= 0) & (ids < share))[:, None], found, 0), mesh, by_token)

    # By shard_map: XLA would sum an int8 table's values over the devices, and then the scales separately.
    spec = P(AXIS if by_token else None)
    return jax.shard_map(own, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=spec, check_vma=False)(table, ids)


def _rows(table: Weight, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    rows = values(table)[ids]
    if isinstance(table, QuantArray):
        rows = rows.astype(jnp.float32) * table.scale[ids, None]
    return rows.astype(dtype)
