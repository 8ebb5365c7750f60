"""What a denoiser is to the programs.

A picture being made is an array of noisy latents, in the form that its network takes: pixels of latents for a UNet, a
sequence of patches for a transformer. Pictures of one `group` have arrays of the same shape and share a program.
"""

from collections.abc import Hashable
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.request import Size

Array = TypeVar("Array", jax.Array, np.ndarray)
Shape = tuple[int, int, int]
"""Latents' height, width and channels."""


class Denoiser(Protocol):
    """A network that removes noise. Its static description: weights are arguments."""

    @property
    def component(self) -> str:
        """Of the checkpoint."""

    @property
    def channels(self) -> int:
        """Of the latents."""

    @property
    def granularity(self) -> int:
        """The latents' height and width are multiples of this."""

    @property
    def noise_patch(self) -> int:
        """Latents of a side of the squares whose noise is drawn together: see `trajectory.draw`."""

    def group(self, size: Size) -> Hashable:
        """What pictures of this size, in pixels, share a program with."""

    def shape(self, latents: Shape) -> tuple[int, ...]:
        """Shape of a picture's array."""

    def mask_shape(self, latents: Shape) -> tuple[int, ...]:
        """Shape of the array that says what is repainted: that, or one that it is broadcast to."""

    def packed(self, latents: Array) -> Array:
        """[h, w, channels] -> a picture's array; of a mask [h, w, 1] -> its array."""

    def unpacked(self, array: Array, latents: Shape) -> Array:
        """A picture's array -> [h, w, channels]."""

    def place(self, latents: Shape) -> np.ndarray | None:
        """What the network needs to know of a picture's shape, as a small array; None: its array says it."""

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
        """The network's output for n pictures' arrays x at times [n], with stacked texts and places: like x.

        Args:
            attention: see `attention.attend`.
            added: by ControlNets, which only UNets have.
        """
