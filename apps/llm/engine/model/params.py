"""A declared tree of parameters as arrays: abstract, read from a checkpoint, or drawn at random.

All of it follows from what `declaration.declare` says of each parameter.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from apps.arrays.programs import ProgramSpec, shardings
from apps.arrays.quantization import QuantArray, Weight, quantize, quantize_rows
from apps.arrays.reading import Index, ParamLoader, read_ahead
from apps.llm.engine.model.param import Param, Params
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.serving.progress import bar

WeightForm = jax.ShapeDtypeStruct | QuantArray[jax.ShapeDtypeStruct]


def abstract(tree: Any, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Any:
    """Shapes, types and shardings without data, of a tree or of one parameter."""
    return _map(partial(_abstract, mesh=mesh, dtype=dtype, int8=int8), tree)


def _abstract(param: Param, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> WeightForm:
    spec = param.spec(mesh)
    if int8 and param.matrix:
        return QuantArray(
            jax.ShapeDtypeStruct(param.shape, jnp.int8, sharding=NamedSharding(mesh, spec)),
            jax.ShapeDtypeStruct(param.shape[:1], jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(spec[0]))),
        )
    return jax.ShapeDtypeStruct(param.shape, param.dtype(dtype), sharding=NamedSharding(mesh, spec))


def load(tree: Params, checkpoint: Checkpoint, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Params:
    """Read every parameter onto its devices; int8 weights are quantized on the host, as they are read."""

    def reading(name: str, param: Param) -> ParamLoader:
        form = abstract(param, mesh, dtype, int8)
        read = partial(_read, param, checkpoint, form, param.read_dtype(dtype, int8, checkpoint))
        return ParamLoader(form, read, whole_rows=True, exchange=True)

    weights = loaded(tree, reading, checkpoint.is_local)
    checkpoint.forget_parts()
    return weights


def _read(param: Param, checkpoint: Checkpoint, form: Weight, read_as: jnp.dtype, index: Index) -> Sequence[np.ndarray]:
    """The part of a parameter at an index: its values and, if it becomes int8, its rows' scales."""
    # NumPy's warning of what is too large for a type would not say where: `check` does.
    with np.errstate(over="ignore", invalid="ignore"):
        # First to the type that a prepared checkpoint's values have had, so that both give the same.
        rows = param.read(checkpoint, index).astype(read_as, copy=False)
        if isinstance(form, QuantArray):
            read: Sequence[np.ndarray] = quantize_rows(rows)
        else:
            read = (rows.astype(form.dtype, copy=False),)
    # Of int8 the scales are enough, because a row's is that of its largest number.
    param.check(checkpoint, read[-1], read_as)
    return read


def loaded(tree: Params, reading: Callable[[str, Param], ParamLoader], local: bool) -> Params:
    """The tree with each parameter, which is given by name, on its devices. For `local` see `read_ahead`."""
    params = named(tree)
    weights = []
    with bar("reading weights", len(params)) as advance:
        for ready in read_ahead((reading(name, param) for name, param in params.items()), local):
            weights.append(ready.placed())
            advance()
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_param), weights)


def random(tree: Params, mesh: Mesh, dtype: jnp.dtype, int8: bool, seed: int = 0) -> Params:
    """Random weights of a sane scale. Each device on every host draws only its own shards.

    The values depend only on the seed, the parameter's shape and its number in the tree, not on the devices: JAX's
    partitionable threefry counts elements, wherever they are.
    """
    numbers = iter(range(_count(tree)))

    def draw(param: Param) -> Weight:
        form = _abstract(param, mesh, dtype, int8)
        # Numbers, not a key: an array on one process's devices cannot be an input on a mesh of several processes.
        weight = _drawing(form, param.constant)(np.uint32(seed), np.uint32(next(numbers)))
        return jax.block_until_ready(weight)  # see `ParamLoader.placed`

    return _map(draw, tree)


@cache
def _drawing(form: WeightForm, constant: float | None) -> jax.stages.Compiled:
    """A program that draws a parameter of this form. Its number is an input, so all layers share it."""
    values = jax.tree.leaves(form)[0]

    def draw(seed: jax.Array, number: jax.Array) -> Weight:
        if constant is not None:
            return jnp.full(values.shape, constant, values.dtype)
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed), number), values.shape, jnp.float32) * 0.02
        return quantize(noise) if isinstance(form, QuantArray) else noise.astype(values.dtype)

    number = jax.ShapeDtypeStruct((), jnp.uint32)
    return ProgramSpec(("draw",), draw, (number, number), out_shardings=shardings(form)).compiled()


def nbytes(params: Any) -> int:
    """Bytes of all parameters, or of another tree of arrays, over all devices."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def shard_bytes(forms: Any) -> int:
    """Bytes of a tree of forms on each device; layouts may pad them."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(forms)
    )


def named(tree: Params) -> dict[str, Param]:
    """A declared tree's parameters by name, such as `layers.0.qkv`, in the tree's order."""
    paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_param)
    return {jax.tree_util.keystr(path, simple=True, separator="."): param for path, param in paths}


def is_param(leaf: Any) -> bool:
    """For `jax.tree`: what counts as a leaf of a declared tree."""
    return isinstance(leaf, Param)


def _map(function: Callable[[Param], Any], tree: Any) -> Any:
    return jax.tree.map(function, tree, is_leaf=is_param)


def _count(tree: Params) -> int:
    return len(jax.tree.leaves(tree, is_leaf=is_param))
