"""Products and lookups with weights that are split over a mesh, what their devices add up, and where it ends up."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.llm.engine.model.quantization import QuantArray, Weight, linear, product, values
from apps.llm.engine.parallel.collectives import AXIS, gathered, scattered, total

TILE = 8
"""What a device's share of the tokens must be a multiple of. Of other shares the TPU compiler makes no reduce-scatter:
it adds everything up on every device and then takes shares, which saves no bytes and takes more exchanges."""


def splits_by_token(tokens: int, devices: int) -> bool:
    """Whether a step of so many tokens keeps each device's share of them between products, not all on every device.

    Norms and residual sums are then done once, not on each device alike, and what the devices exchange is gathered
    after the norm, in the model's type. (Korthikanti et al. 2022, "Reducing activation recomputation in large
    transformer models", call it sequence parallelism.)
    """
    return devices > 1 and tokens % (TILE * devices) == 0


def row_parallel(x: jax.Array, weight: Weight, bias: jax.Array | None, mesh: Mesh, by_token: bool) -> jax.Array:
    """`linear` where both x and the weight are split along `in` over the mesh; see `add_up` for where it ends up."""
    if mesh.size == 1:
        return linear(x, weight, bias)
    parts = QuantArray(P(None, AXIS), P()) if isinstance(weight, QuantArray) else P(None, AXIS)

    def own(x: jax.Array, weight: Weight) -> jax.Array:
        y = product(x, weight)
        # XLA itself makes an all-reduce one of the model's type, if that is all that is wanted; not a reduce-scatter.
        return add_up(y.astype(x.dtype) if by_token else y, mesh, by_token)

    y = jax.shard_map(
        own, mesh=mesh, in_specs=(P(None, AXIS), parts), out_specs=P(AXIS if by_token else None), check_vma=False
    )(x, weight).astype(x.dtype)
    return y if bias is None else (y + bias).astype(x.dtype)


def add_up(x: jax.Array, mesh: Mesh, by_token: bool) -> jax.Array:
    """Inside `shard_map`: the sum of each device's `[tokens, ...]`; a share of the tokens on each, or all on all."""
    return scattered(x, mesh) if by_token else total(x, mesh)


def whole(x: jax.Array, mesh: Mesh, by_token: bool) -> jax.Array:
    """`[tokens, ...]` on every device, where it was split by token."""
    if not by_token:
        return x
    return jax.shard_map(lambda x: gathered(x, mesh), mesh=mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False)(x)


def rows(table: Weight, ids: jax.Array, dtype: jnp.dtype, mesh: Mesh, by_token: bool = False) -> jax.Array:
    """Rows of an embedding table: `[vocab, hidden]`, `[tokens]` -> `[tokens, hidden]`; see `add_up` for where."""
    vocab = values(table).shape[0]
    if mesh.size == 1 or vocab % mesh.size:  # a table that does not divide lies whole on each device
        return _rows(table, ids, dtype)
    share = vocab // mesh.size

    def own(table: Weight, ids: jax.Array) -> jax.Array:
        ids = ids - jax.lax.axis_index(AXIS) * share
        found = _rows(table, jnp.clip(ids, 0, share - 1), dtype)
        return add_up(jnp.where(((ids >= 0) & (ids < share))[:, None], found, 0), mesh, by_token)

    # By hand: XLA would add an int8 table's values over the devices, and then their scales once more.
    spec = P(AXIS if by_token else None)
    return jax.shard_map(own, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=spec, check_vma=False)(table, ids)


def _rows(table: Weight, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    rows = values(table)[ids]
    if isinstance(table, QuantArray):
        rows = rows.astype(jnp.float32) * table.scale[ids, None]
    return rows.astype(dtype)
