"""Stable Diffusion's UNets as denoisers: a picture's array is its latents."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.denoisers.interface import Array, Shape
from apps.stable_diffusion.engine.model import unet
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.request import Size


@dataclass(frozen=True)
class UNetDenoiser:
    """The `Denoiser`.

    Args:
        reduction: pixels per latent, on each axis.
    """

    arch: unet.UNetArchitecture
    reduction: int

    component = "unet"
    channels = 4
    granularity = noise_patch = 1

    def group(self, size: Size) -> Size:
        return size

    def shape(self, latents: Shape) -> tuple[int, ...]:
        return latents

    def mask_shape(self, latents: Shape) -> tuple[int, ...]:
        return *latents[:2], 1

    def packed(self, latents: Array) -> Array:
        return latents

    def unpacked(self, array: Array, latents: Shape) -> Array:
        return array

    def place(self, latents: Shape) -> np.ndarray | None:
        return None

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
        return unet.predict(w, self.arch, x, time, self.conditioning(x, text), attention, added)

    def conditioning(self, x: jax.Array, text: EncodedPrompt) -> unet.Conditioning:
        """What n pictures' arrays x are conditioned on, with stacked texts."""
        sizes = None
        if self.arch.size_width is not None:
            height, width = (side * self.reduction for side in x.shape[1:3])
            sizes = jnp.tile(jnp.array([height, width, 0, 0, height, width], jnp.float32), (len(x), 1))
        seen = None if text.length is None else jnp.arange(text.context.shape[1]) < text.length[:, None]
        return unet.Conditioning(text.context, text.pooled, sizes, seen)
