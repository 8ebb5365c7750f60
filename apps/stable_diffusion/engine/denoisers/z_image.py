"""Z-Image's transformer as denoiser."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.denoisers.patches import PatchDenoiser, lengths_of
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.transformers import z_image
from apps.stable_diffusion.engine.transformers.tokens import PATCH


@dataclass(frozen=True)
class ZImageDenoiser(PatchDenoiser):
    """The `Denoiser`."""

    arch: z_image.ZImageArchitecture

    @classmethod
    def of(cls, arch: z_image.ZImageArchitecture, reduction: int, sizes: Sequence[Size]) -> "ZImageDenoiser":
        """For pictures of these sizes. Raises ValueError for one that the model cannot make."""
        side = reduction * PATCH
        for width, height in sizes:
            if height // side > arch.most[1] or width // side > arch.most[2]:
                raise ValueError(
                    f"size {width}x{height}: this model makes at most {arch.most[2] * side}x{arch.most[1] * side}"
                )
        return cls(arch.channels, reduction, lengths_of(sizes, side), arch)

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
