"""Z-Image's transformer as denoiser: a picture's array is its patches, filled up to the longest of its group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.denoisers.interface import Array, Shape
from apps.stable_diffusion.engine.model import z_image
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.model.z_image import PATCH, filled_up
from apps.stable_diffusion.engine.request import Size

ALIKE = 0.75
"""Sizes whose patches are at least so large a part of a larger size's share its program, and its batch."""
LONG, LONG_MULTIPLE = 1024, 128
"""From so many patches on they are filled up to a multiple that the attention kernel takes."""


@dataclass(frozen=True)
class ZImageDenoiser:
    """The `Denoiser`.

    Args:
        reduction: pixels per latent, on each axis.
        lengths: patches of each group, ascending.
    """

    arch: z_image.ZImageArchitecture
    reduction: int
    lengths: tuple[int, ...]

    component = "transformer"
    granularity = PATCH

    @classmethod
    def of(cls, arch: z_image.ZImageArchitecture, reduction: int, sizes: Sequence[Size]) -> "ZImageDenoiser":
        """With as few groups as `ALIKE` allows. Raises ValueError for a size that the model cannot make."""
        side = reduction * PATCH
        for width, height in sizes:
            if height // side > arch.most[1] or width // side > arch.most[2]:
                raise ValueError(
                    f"size {width}x{height}: this model makes at most {arch.most[2] * side}x{arch.most[1] * side}"
                )
        largest: list[int] = []
        for patches in sorted({_patches(size, side) for size in sizes}, reverse=True):
            if not largest or patches < ALIKE * largest[-1]:
                largest.append(patches)
        return cls(arch, reduction, tuple(_length(patches) for patches in reversed(largest)))

    @property
    def channels(self) -> int:
        return self.arch.channels

    def group(self, size: Size) -> int:
        """Patches of the group's arrays."""
        return self._filled(_patches(size, self.reduction * PATCH))

    def shape(self, latents: Shape) -> tuple[int, ...]:
        height, width, channels = latents
        return self._filled(height * width // PATCH**2), PATCH**2 * channels

    def mask_shape(self, latents: Shape) -> tuple[int, ...]:
        return self.shape(latents)

    def packed(self, latents: Array) -> Array:
        height, width, channels = latents.shape
        if channels == 1:
            latents = latents.repeat(self.channels, axis=-1)
            channels = self.channels
        patches = latents.reshape(height // PATCH, PATCH, width // PATCH, PATCH, channels).swapaxes(1, 2)
        patches = patches.reshape(-1, PATCH**2 * channels)
        padding = ((0, self._filled(len(patches)) - len(patches)), (0, 0))
        return np.pad(patches, padding) if isinstance(patches, np.ndarray) else jnp.pad(patches, padding)

    def unpacked(self, array: Array, latents: Shape) -> Array:
        height, width, channels = latents
        rows, columns = height // PATCH, width // PATCH
        patches = array[: rows * columns].reshape(rows, columns, PATCH, PATCH, channels)
        return patches.swapaxes(1, 2).reshape(latents)

    def place(self, latents: Shape) -> np.ndarray | None:
        """Rows and columns of patches, [2] int32."""
        return np.array([side // PATCH for side in latents[:2]], np.int32)

    def predict(
        self,
        w: NamedWeights,
        x: jax.Array,
        time: jax.Array,
        text: EncodedPrompt,
        place: Any,
        attention: str,
        added: tuple[jax.Array, ...] | None = None,
    ) -> jax.Array:
        """The velocity from picture to noise, at noise levels `time`: the network has both the other way round."""
        assert text.length is not None and added is None  # a language model's; ControlNets are of UNets
        return -z_image.predict(w, self.arch, x, 1 - time, text.context, text.length, place, attention)

    def _filled(self, patches: int) -> int:
        return next(length for length in self.lengths if length >= patches)


def _patches(size: Size, side: int) -> int:
    return size[0] // side * (size[1] // side)


def _length(patches: int) -> int:
    multiple = LONG_MULTIPLE if patches >= LONG else 1
    return -(-int(filled_up(patches)) // multiple) * multiple
