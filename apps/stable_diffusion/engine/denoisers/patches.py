"""What the denoisers of diffusion transformers share: a picture's array is its patches, filled up to its group's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from apps.stable_diffusion.engine.denoisers.interface import Array, Shape
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.transformers.tokens import PATCH
from apps.stable_diffusion.engine.transformers.z_image import MULTIPLE

ALIKE = 0.75
"""Sizes whose patches are at least so large a part of a larger size's share its program, and its batch."""
LONG, LONG_MULTIPLE = 1024, 128
"""From so many patches on they are filled up to a multiple that the attention kernel takes."""


def lengths_of(sizes: Sequence[Size], side: int) -> tuple[int, ...]:
    """Patches of each group, ascending: as few groups as `ALIKE` allows, with room for Z-Image's learned tokens.

    Args:
        side: pixels of a patch's side.
    """
    largest: list[int] = []
    for patches in sorted({_patches(size, side) for size in sizes}, reverse=True):
        if not largest or patches < ALIKE * largest[-1]:
            largest.append(patches)
    return tuple(_length(patches) for patches in reversed(largest))


@dataclass(frozen=True)
class PatchDenoiser:
    """All of a `Denoiser` but its network.

    Args:
        channels: of the latents.
        reduction: pixels per latent, on each axis.
        lengths: patches of each group, ascending.
    """

    channels: int
    reduction: int
    lengths: tuple[int, ...]

    component: ClassVar[str] = "transformer"
    granularity: ClassVar[int] = PATCH
    noise_patch: ClassVar[int] = 1
    by_channel: ClassVar[bool] = False
    """Whether a patch has its channels one after another, each with its latents; not latents with channels."""

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
        patches = latents.reshape(height // PATCH, PATCH, width // PATCH, PATCH, channels)
        order = (0, 2, 4, 1, 3) if self.by_channel else (0, 2, 1, 3, 4)
        patches = patches.transpose(order).reshape(-1, PATCH**2 * channels)
        padding = ((0, self._filled(len(patches)) - len(patches)), (0, 0))
        return np.pad(patches, padding) if isinstance(patches, np.ndarray) else jnp.pad(patches, padding)

    def unpacked(self, array: Array, latents: Shape) -> Array:
        height, width, channels = latents
        rows, columns = height // PATCH, width // PATCH
        inner, order = (PATCH, PATCH, channels), (0, 2, 1, 3, 4)
        if self.by_channel:
            inner, order = (channels, PATCH, PATCH), (0, 3, 1, 4, 2)
        return array[: rows * columns].reshape(rows, columns, *inner).transpose(order).reshape(latents)

    def place(self, latents: Shape) -> np.ndarray | None:
        """Rows and columns of patches, [2] int32."""
        return np.array([side // PATCH for side in latents[:2]], np.int32)

    def _filled(self, patches: int) -> int:
        return next(length for length in self.lengths if length >= patches)


def _patches(size: Size, side: int) -> int:
    return size[0] // side * (size[1] // side)


def _length(patches: int) -> int:
    multiple = LONG_MULTIPLE if patches >= LONG else MULTIPLE
    return -(-patches // multiple) * multiple
