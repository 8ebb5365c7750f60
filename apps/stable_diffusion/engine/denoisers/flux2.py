"""FLUX.2's transformer as denoiser."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.denoisers.patches import PatchDenoiser, lengths_of
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.transformers import flux2
from apps.stable_diffusion.engine.transformers.tokens import PATCH


@dataclass(frozen=True)
class Flux2Denoiser(PatchDenoiser):
    """The `Denoiser`."""

    arch: flux2.Flux2Architecture

    noise_patch: ClassVar[int] = PATCH
    by_channel: ClassVar[bool] = True

    @classmethod
    def of(cls, arch: flux2.Flux2Architecture, reduction: int, sizes: Sequence[Size]) -> "Flux2Denoiser":
        """For pictures of these sizes."""
        return cls(arch.channels, reduction, lengths_of(sizes, reduction * PATCH), arch)

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
        """The velocity from picture to noise, at noise levels `time`."""
        assert text.length is None and added is None  # all positions count; ControlNets are of UNets
        return flux2.predict(w, self.arch, x, time, text.context, place, attention)
