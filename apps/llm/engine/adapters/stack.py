"""The adapters on the devices: a stack of matrices for each layer, written while the engine runs."""

import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.collectives import AXIS
from apps.llm.engine.adapters.low_rank import AdaptedProduct, LowRank
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.feed_forward.choice import network_of
from apps.llm.engine.model.mixers.choice import mixer_of
from apps.llm.engine.model.split import Split

Adapted = dict[str, LowRank]
"""A layer's matrices, by the name of the parameter whose product they add to."""

SPLIT = {"in": LowRank(P(AXIS), P()), "out": LowRank(P(), P(AXIS))}
"""How the last axes of A and B are split over the mesh, by the axis of the parameter that is split."""


def products(arch: Architecture, split: Split) -> list[dict[str, AdaptedProduct]]:
    """Each layer's products that adapters can change."""
    hidden = arch.hidden_size
    return [
        mixer_of(spec.mixer, hidden, split).adapted() | network_of(spec, hidden, split).adapted()
        for spec in arch.layers
    ]


def shapes(product: AdaptedProduct, rank: int) -> LowRank:
    """Shapes of one adapter's matrices for a product."""
    return LowRank((product.inputs, rank, product.width), (product.outputs, rank, product.out))


def abstract(arch: Architecture, split: Split, mesh: Mesh, dtype: jnp.dtype, adapters: int, rank: int) -> list[Adapted]:
    """Shapes, types and shardings of each layer's stack."""

    def stack(shape: tuple[int, ...], split: P) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, P(None, None, None, *split))
        return jax.ShapeDtypeStruct((shape[0], adapters, *shape[1:]), dtype, sharding=sharding)

    return [
        {name: LowRank(*map(stack, shapes(each, rank), SPLIT[each.split])) for name, each in layer.items()}
        for layer in products(arch, split)
    ]


def empty(form: Adapted) -> Adapted:
    """A layer's stack, all zeros."""
    return jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype, device=part.sharding), form)


def written(stack: Adapted, values: Adapted, place: jax.Array) -> Adapted:
    """A layer's stack with one adapter's matrices in a place, from 0; a program, which is given the stack's memory."""
    return jax.tree.map(lambda old, new: old.at[:, place].set(new), stack, values)


def of_one(form: Adapted) -> Adapted:
    """The form of one adapter's matrices, for a layer whose stack has this form."""

    def one(part: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(part.sharding.mesh, P(None, None, *part.sharding.spec[3:]))
        return jax.ShapeDtypeStruct((part.shape[0], *part.shape[2:]), part.dtype, sharding=sharding)

    return jax.tree.map(one, form)


def on_devices(form: Adapted, values: Adapted) -> Adapted:
    """One adapter's matrices, arrays of the host, on the devices, for a layer whose stack has this form."""

    def place(part: jax.ShapeDtypeStruct, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(value.shape, part.sharding, lambda index: value[index])

    return jax.tree.map(place, of_one(form), values)


def packed(values: Adapted) -> bytes:
    """One adapter's matrices of a layer, to send to a host."""
    return b"".join(np.ascontiguousarray(part).tobytes() for part in jax.tree.leaves(values))


def digest(layers: Sequence[Adapted]) -> bytes:
    """What tells an adapter's weights from all others, 16 bytes: the same in every process that has read them."""
    found = hashlib.blake2b(digest_size=16)
    for layer in layers:
        for name in sorted(layer):
            found.update(name.encode())
            for part in layer[name]:
                found.update(str(part.shape).encode())
                found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.digest()


def unpacked(form: Adapted, content: bytes) -> Adapted:
    """The result of `packed`, for a layer whose stack has this form; zeros if there is no content."""
    content = content or bytes(nbytes(form))
    parts, tree = jax.tree.flatten(form)
    arrays, at = [], 0
    for part in parts:
        shape = (part.shape[0], *part.shape[2:])
        array = np.frombuffer(content, part.dtype, int(np.prod(shape)), at)
        arrays.append(array.reshape(shape))
        at += array.nbytes
    return jax.tree.unflatten(tree, arrays)


def nbytes(form: Adapted) -> int:
    """Bytes of `packed`."""
    return sum(part.size // part.shape[1] * part.dtype.itemsize for part in jax.tree.leaves(form))


def drawn(arch: Architecture, split: Split, dtype: jnp.dtype, rank: int, seed: int) -> list[Adapted]:
    """Every layer's matrices of an adapter at random: for a `tiny` model, which no adapter's file fits."""
    random = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return (random.standard_normal(shape, np.float32) * shape[-1] ** -0.5).astype(dtype)

    return [
        {name: LowRank(*map(draw, shapes(each, rank))) for name, each in layer.items()}
        for layer in products(arch, split)
    ]
