"""Products and lookups with weights that are split over a mesh, and what their devices add up."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.llm.engine.model.quantization import QuantArray, Weight, linear, product, values
from apps.llm.engine.parallel.collectives import AXIS, total


def row_parallel(x: jax.Array, weight: Weight, bias: jax.Array | None, mesh: Mesh) -> jax.Array:
    """`linear` where both x and the weight are split along `in` over the mesh; whole on every device."""
    if mesh.size == 1:
        return linear(x, weight, bias)
    split = P(None, AXIS)
    parts = QuantArray(split, P()) if isinstance(weight, QuantArray) else split
    summed = jax.shard_map(
        lambda x, weight: total(product(x, weight), mesh),
        mesh=mesh,
        in_specs=(split, parts),
        out_specs=P(),
        check_vma=False,
    )
    y = summed(x, weight)
    return (y if bias is None else y + bias.astype(jnp.float32)).astype(x.dtype)


def rows(table: Weight, ids: jax.Array, dtype: jnp.dtype, mesh: Mesh) -> jax.Array:
    """Rows of an embedding table: `[vocab, hidden]`, `[tokens]` -> `[tokens, hidden]`, whole on every device."""
    vocab = values(table).shape[0]
    if mesh.size == 1 or vocab % mesh.size:  # a table that does not divide lies whole on each device
        return _rows(table, ids, dtype)
    share = vocab // mesh.size

    def own(table: Weight, ids: jax.Array) -> jax.Array:
        ids = ids - jax.lax.axis_index(AXIS) * share
        found = _rows(table, jnp.clip(ids, 0, share - 1), dtype)
        return total(jnp.where(((ids >= 0) & (ids < share))[:, None], found, 0), mesh)

    # By hand: XLA would add an int8 table's values over the devices, and then their scales once more.
    return jax.shard_map(own, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(), check_vma=False)(table, ids)


def _rows(table: Weight, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    rows = values(table)[ids]
    if isinstance(table, QuantArray):
        rows = rows.astype(jnp.float32) * table.scale[ids, None]
    return rows.astype(dtype)
