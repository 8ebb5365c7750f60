"""A component's weights: named as in the checkpoint, checked against the model's shapes, loaded for JAX.

The model functions request each tensor with the shape that the config implies. Run once on shapes only (`required`),
they declare what they need: a missing or misshapen tensor is found before anything is read, and tensors that no
function requests are never loaded.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.arrays.model_folder import CheckpointError, TensorEntry
from apps.serving.numbers.finite import all_finite
from apps.stable_diffusion.engine.model.checkpoint import ComponentSource
from apps.stable_diffusion.engine.model.low_rank import LoraPair

READERS = 8  # remote files are slow: several tensors are read at a time
OLD_NAMES = {  # of a VAE's attention, before diffusers 0.18
    ".query.": ".to_q.",
    ".key.": ".to_k.",
    ".value.": ".to_v.",
    ".proj_attn.": ".to_out.0.",
}


class NamedWeights:
    """Named arrays seen under a prefix: `weights["down_blocks"][0]["resnets"][1]`.

    A matrix is `[in, out]` and a convolution `[height, width, in, out]`, the transpose of what the files hold.
    """

    def __init__(self, arrays: Mapping[str, Any], prefix: str = "") -> None:
        self._arrays = arrays
        self._prefix = prefix

    def __getitem__(self, name: str | int) -> "NamedWeights":
        return NamedWeights(self._arrays, f"{self._prefix}{name}.")

    @property
    def low_rank(self) -> LoraPair | None:
        """What LoRA adds to products with this layer's `weight`; None: nothing."""
        return None

    def get(self, name: str, *shape: int) -> jax.Array:
        """The array of this name, which must have this shape."""
        full = self._prefix + name
        if full not in self._arrays:
            raise CheckpointError(f"tensor {full} is missing")
        array = self._arrays[full]
        if array.shape != shape:
            raise CheckpointError(
                f"tensor {full} has shape {_as_stored(array.shape)}, but the config implies {_as_stored(shape)}"
            )
        return array


class _Noting(dict[str, Any]):
    """Records which names were read."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        super().__init__(arrays)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


class _Declaring(NamedWeights):
    """Returns zeros for any name, and records the names and shapes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: np.dtype, prefix: str = "") -> None:
        super().__init__({}, prefix)
        self._shapes, self._dtype = shapes, dtype

    def __getitem__(self, name: str | int) -> NamedWeights:
        return _Declaring(self._shapes, self._dtype, f"{self._prefix}{name}.")

    def get(self, name: str, *shape: int) -> jax.Array:
        self._shapes[self._prefix + name] = shape
        return jnp.zeros(shape, self._dtype)


def declared(function: Callable[[NamedWeights], Any], dtype: np.dtype) -> dict[str, jax.ShapeDtypeStruct]:
    """The tensors that a function of a component's weights uses, from its config alone, without a checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {}
    jax.eval_shape(lambda: function(_Declaring(shapes, dtype)))
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}


def _as_stored(shape: tuple[int, ...]) -> list[int]:
    return [shape[3], shape[2], shape[0], shape[1]] if len(shape) == 4 else list(shape[::-1])


def _as_used(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """[out, in] -> [in, out], [out, in, h, w] -> [h, w, in, out]; a table of embeddings is unchanged."""
    if name.endswith("embedding.weight"):
        return shape
    return (shape[2], shape[3], shape[1], shape[0]) if len(shape) == 4 else shape[::-1]


def _transpose(name: str, array: np.ndarray) -> np.ndarray:
    if name.endswith("embedding.weight"):
        return array
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _new_name(name: str) -> str:
    name = name.removeprefix("text_model.")  # transformers wrote it until 5.0
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def required(
    source: ComponentSource, component: str, function: Callable[[NamedWeights], Any], dtype: np.dtype
) -> dict[str, TensorEntry]:
    """The tensors that a function of a component's weights uses, by their new names.

    Raises:
        CheckpointError: one is missing, or its shape is not what the config implies.
    """
    entries = {_new_name(name): entry for name, entry in source.tensors(component).items()}
    shapes = {name: jax.ShapeDtypeStruct(_as_used(name, entry.shape), dtype) for name, entry in entries.items()}
    asked: set[str] = set()

    def noting(arrays: Mapping[str, Any]) -> Any:
        notes = _Noting(arrays)
        try:
            return function(NamedWeights(notes))
        finally:
            asked.update(notes.asked)

    try:
        jax.eval_shape(noting, shapes)
    except CheckpointError as error:
        raise CheckpointError(f"{source.where(component)}: {error}") from None
    return {name: entry for name, entry in entries.items() if name in asked}


def load(
    source: ComponentSource, entries: Mapping[str, TensorEntry], dtype: np.dtype, sharding: jax.sharding.Sharding
) -> dict[str, jax.Array]:
    """Read tensors onto the devices, a few at a time, so that the host never holds a whole model."""

    def read(name: str) -> jax.Array:
        array = np.ascontiguousarray(_transpose(name, source.read(entries[name]))).astype(dtype, copy=False)
        if not all_finite(array):
            raise CheckpointError(
                f"{source.location}/{entries[name].file}: tensor {name} has numbers that are not finite (NaN or "
                f"infinity, or too large for {dtype})"
            )
        return jax.device_put(array, sharding)

    with ThreadPoolExecutor(READERS) as readers:
        return dict(zip(entries, readers.map(read, entries)))
