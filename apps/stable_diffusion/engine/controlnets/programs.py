"""The programs of ControlNets. One serves all ControlNets of a kind: their weights are arguments.

Before a denoising step each ControlNet in use runs over the whole batch, and adds to arrays that the step reads. A
picture without it has the scale 0 there; so pictures with any ControlNets, and without, share a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from apps.stable_diffusion.engine.backends.programs import DenoisingState, PictureInputs, Programs, columns, stack
from apps.stable_diffusion.engine.controlnets import network
from apps.stable_diffusion.engine.controlnets.network import ControlNetArchitecture, Residuals
from apps.stable_diffusion.engine.denoisers.unet import UNetDenoiser
from apps.stable_diffusion.engine.model.weights import NamedWeights, declared
from apps.stable_diffusion.engine.request import Size


@dataclass(frozen=True)
class ControlPrograms:
    """The functions of ControlNets, beside a model's.

    Args:
        denoiser: the model's.
        kinds: those that are served, each once.
    """

    base: Programs
    denoiser: UNetDenoiser
    kinds: tuple[ControlNetArchitecture, ...]

    def embed_image(self, kind: int, weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
        """Pixels [H, W, 3] uint8 -> [h, w, channels]."""

        def whole(weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
            shares = (pixels[None].astype(jnp.float32) / 255).astype(self.base.dtype)
            return network.embed_image(NamedWeights(weights), self.kinds[kind], shares)[0]

        run = jax.shard_map(whole, mesh=self.base.mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
        return run(weights, pixels)

    def residuals(
        self,
        kind: int,
        weights: Mapping[str, jax.Array],
        coefficients: jax.Array,
        states: tuple[DenoisingState, ...],
        inputs: tuple[PictureInputs, ...],
        images: tuple[jax.Array, ...],
        scales: jax.Array,
        pooled: jax.Array,
        added: Residuals,
    ) -> Residuals:
        """`added`, and what one ControlNet adds to the n passes of b pictures; the first arguments are `denoise`'s.

        Args:
            images: of each picture, as `embed_image` makes them.
            scales: [n, residuals]; 0: nothing is added.
            pooled: bool: only each channel's mean is added.
        """
        state, fixed, image = stack(states), stack(inputs), jnp.stack(images)
        scaled = columns(coefficients, state.latents).scale * state.latents
        x, time, text, _ = self.base.passes(scaled, coefficients[:, 0], fixed)
        image = image.repeat(2, axis=0) if self.base.guided else image

        def each(weights: Any, pooled: Any, x: Any, time: Any, text: Any, image: Any, scales: Any, added: Any) -> Any:
            x = x.astype(self.base.dtype)
            cond = self.denoiser.conditioning(x, text)
            own = network.residuals(NamedWeights(weights), self.kinds[kind], x, image, time, cond, self.base.attention)
            return tuple(old + _scaled(new, scales[:, i], pooled) for i, (old, new) in enumerate(zip(added, own)))

        share = P("data")
        run = jax.shard_map(
            each, mesh=self.base.mesh, in_specs=(P(), P(), *[share] * 6), out_specs=share, check_vma=False
        )
        return run(weights, pooled, x, time, text, image, scales, added)

    def function(self, kind: int) -> Callable[[NamedWeights], Any]:
        """A function of a ControlNet's weights that uses all that its programs use, on small arrays."""
        arch, dtype = self.kinds[kind], self.base.dtype

        def both(w: NamedWeights) -> Any:
            text = jax.tree.map(lambda form: jnp.zeros((1, *form.shape), form.dtype), self.base.texts())
            side = 2 ** (len(arch.half.channels) - 1)
            x, pixels = (jnp.zeros((1, n, n, c), dtype) for n, c in ((side, 4), (side * arch.reduction, 3)))
            cond = self.denoiser.conditioning(x, text)
            return network.residuals(w, arch, x, network.embed_image(w, arch, pixels), jnp.zeros(1), cond, "xla")

        return both

    # -- shapes -------------------------------------------------------------------------------------------------

    @property
    def split(self) -> NamedSharding:
        """Of arrays whose passes are split over the chips."""
        return NamedSharding(self.base.mesh, P("data"))

    @cached_property
    def layers(self) -> int:
        """Residuals of each ControlNet: as many as the UNet keeps, and the middle's."""
        return len(list(self.kinds[0].shapes(8, 8)))

    def passes(self, b: int) -> int:
        return 2 * b if self.base.guided else b

    def forms(self) -> list[dict[str, jax.ShapeDtypeStruct]]:
        """Of each kind's weights."""
        return [
            {name: self.base.shape(form.shape, form.dtype) for name, form in own.items()}
            for own in (declared(self.function(kind), self.base.dtype) for kind in range(len(self.kinds)))
        ]

    def added(self, size: Size, b: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Of what is added to b pictures."""
        height, width, _ = self.base.latents(size)
        shapes = self.kinds[0].shapes(height, width)
        n, dtype = self.passes(b), self.base.dtype
        return tuple(jax.ShapeDtypeStruct((n, *shape), dtype, sharding=self.split) for shape in shapes)

    def scales(self, b: int) -> jax.ShapeDtypeStruct:
        return self.base.shape((self.passes(b), self.layers))

    def small_image(self, kind: int, size: Size) -> jax.ShapeDtypeStruct:
        height, width, _ = self.base.latents(size)
        return self.base.shape((height, width, self.kinds[kind].half.channels[0]), self.base.dtype)


def _scaled(residual: jax.Array, scales: jax.Array, pooled: jax.Array) -> jax.Array:
    """[n, h, w, c], or its means, times [n]; a scale of 0 is nothing, even of numbers that are not finite."""
    each, own = scales[:, None, None, None], residual.astype(jnp.float32)
    own = jnp.where(pooled, own.mean((1, 2), keepdims=True), own)
    return jnp.where(each != 0, each * own, 0).astype(residual.dtype)


def zeros_on_devices(forms: tuple[jax.ShapeDtypeStruct, ...]) -> Residuals:
    """Arrays that add nothing."""
    return tuple(jax.device_put(np.zeros(form.shape, form.dtype), form.sharding) for form in forms)
