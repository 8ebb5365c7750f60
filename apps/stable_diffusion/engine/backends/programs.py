"""The programs that `JaxBackend` compiles, as functions of weights and arrays.

A picture being made is a handful of small arrays, replicated on every chip. The denoising program takes the pictures of
a batch as separate arguments, stacks them, runs each chip's share through the network (with guidance a picture takes
two passes, with and without the prompt, possibly on two chips) and returns them separately: so pictures join and leave
a batch without an extra copy or program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.stable_diffusion.engine.conditioning.interface import AllWeights, EncodedPrompt, PromptEncoder
from apps.stable_diffusion.engine.denoisers.interface import Denoiser, Shape
from apps.stable_diffusion.engine.loras.layout import Pool, adapted
from apps.stable_diffusion.engine.loras.pool import LoraForms
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.model import vae
from apps.stable_diffusion.engine.model.weights import NamedWeights, declared
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.scheduling.schedules import COLUMNS, StepCoefficients


class DenoisingState(NamedTuple):
    """The arrays that a step changes, float32; in the denoiser's form, as all arrays of a picture."""

    latents: jax.Array
    estimate: jax.Array  # of the final latents


class PictureInputs(NamedTuple):
    """A picture's inputs; the same arrays in all its steps."""

    prompt: EncodedPrompt
    negative: EncodedPrompt | None  # None without guidance
    mask: jax.Array  # float32; 0 keeps the original
    original: jax.Array  # latents of the image of which parts are kept
    start_noise: jax.Array
    place: jax.Array | None  # see `Denoiser.place`


@dataclass(frozen=True)
class Programs:
    """A model's functions on a mesh with the axis `data`."""

    mesh: Mesh
    encoder: PromptEncoder
    denoiser: Denoiser
    vae: vae.VaeArchitecture
    attention: str  # see `attention.attend`
    dtype: jnp.dtype
    guided: bool

    def encode_text(
        self, weights: AllWeights, inputs: tuple[jax.Array, ...], loras: Mapping[str, Pool] | None = None
    ) -> EncodedPrompt:
        """One prompt; inputs as `PromptEncoder` has them. `loras`: pools of a single slot."""
        return self.encoder.encode(weights, inputs, loras)

    def predict(
        self,
        weights: NamedWeights,
        x: jax.Array,
        time: jax.Array,
        text: EncodedPrompt,
        place: jax.Array | None,
        added: tuple[jax.Array, ...] | None = None,
    ) -> jax.Array:
        """The network's output for n pictures at times [n], with stacked texts and places: float32, like x."""
        out = self.denoiser.predict(weights, x.astype(self.dtype), time, text, place, self.attention, added)
        return out.astype(jnp.float32)

    def passes(self, x: jax.Array, time: jax.Array, fixed: PictureInputs) -> tuple[jax.Array, jax.Array, Any, Any]:
        """What the network is given of b pictures: scaled latents, times, texts and places of its n passes.

        With guidance n = 2 b, each picture first without the prompt and then with it; without guidance n = b.
        """
        if not self.guided:
            return x, time, fixed.prompt, fixed.place
        text = jax.tree.map(_interleave, fixed.negative, fixed.prompt)
        place = None if fixed.place is None else fixed.place.repeat(2, axis=0)
        return x.repeat(2, axis=0), time.repeat(2), text, place

    def denoise(
        self,
        weights: Mapping[str, jax.Array],
        coefficients: jax.Array,
        states: tuple[DenoisingState, ...],
        inputs: tuple[PictureInputs, ...],
        noises: tuple[jax.Array, ...],
        pool: Pool | None = None,
        slots: jax.Array | None = None,
        added: tuple[jax.Array, ...] | None = None,
    ) -> tuple[DenoisingState, ...]:
        """One step of b pictures, passed separately.

        Args:
            coefficients: [b, COLUMNS + 1], each picture's (see `schedules`) and its guidance scale.
            noises: each like a picture's latents.
            pool: of LoRAs; None: there are none.
            slots: [b] int32, each picture's in the pool.
            added: what ControlNets add to the n passes: see `controlnets.programs`.
        """
        state, fixed, noise = stack(states), stack(inputs), jnp.stack(noises)
        every = tuple(range(1, state.latents.ndim))  # of a picture's axes
        step = columns(coefficients, state.latents)
        x, time, text, place = self.passes(step.scale * state.latents, coefficients[:, 0], fixed)
        slots = slots.repeat(2) if self.guided and slots is not None else slots
        share = P("data")  # the chips share the n passes through the network; the rest is small, and replicated
        predict = jax.shard_map(
            lambda weights, pool, slots, *arrays: self.predict(adapted(weights, pool, slots), *arrays),
            mesh=self.mesh,
            in_specs=(P(), P(), *[share] * 6),
            out_specs=share,
            check_vma=False,
        )
        out = predict(weights, pool, slots, x, time, text, place, added)
        out = jax.lax.with_sharding_constraint(out, self.everywhere)
        if self.guided:
            out = out[::2] + jnp.expand_dims(coefficients[:, COLUMNS], every) * (out[1::2] - out[::2])
        estimate = step.from_sample * state.latents + step.from_output * out
        latents = step.keep * state.latents + step.toward * estimate + step.momentum * state.estimate
        latents = latents + step.jitter * noise
        kept = step.original * fixed.original + step.noise * fixed.start_noise
        latents = fixed.mask * latents + (1 - fixed.mask) * kept
        return tuple(DenoisingState(latents[i], estimate[i]) for i in range(len(states)))

    def decode(
        self, size: Size, weights: Mapping[str, jax.Array], latents: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """One picture for each chip -> [chips, H, W, 3] uint8, and [chips] whether its numbers are finite."""
        shape = self.latents(size)

        def each(weights: Mapping[str, jax.Array], latents: jax.Array) -> tuple[jax.Array, jax.Array]:
            own = NamedWeights(weights)
            x = self.vae.decodable(own, latents).astype(self.dtype)
            pixels = vae.decode(own, self.vae, x, self.attention)
            finite = jnp.isfinite(jnp.max(jnp.abs(pixels), axis=(1, 2, 3)))  # a maximum is NaN where a number is
            return jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8), finite

        share = P("data")
        decoded = jax.shard_map(each, mesh=self.mesh, in_specs=(P(), share), out_specs=share, check_vma=False)
        return decoded(weights, jnp.stack([self.denoiser.unpacked(own, shape) for own in latents]))

    def encode_image(
        self,
        weights: Mapping[str, jax.Array],
        image: jax.Array,
        image_noise: jax.Array,
        start_noise: jax.Array,
        mix: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Pixels [H, W, 3] uint8 -> their latents, and mix[0] * latents + mix[1] * noise, as the denoiser has them.

        Args:
            image_noise: [h, w, channels], as `start_noise`.
        """

        def whole(weights: Mapping[str, jax.Array], image: jax.Array) -> tuple[jax.Array, jax.Array]:
            pixels = (image[None].astype(jnp.float32) / 255 * 2 - 1).astype(self.dtype)
            return vae.encode(NamedWeights(weights), self.vae, pixels, self.attention)

        split = jax.shard_map(whole, mesh=self.mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
        mean, deviation = split(weights, image)
        original = self.vae.denoisable(NamedWeights(weights), mean[0] + deviation[0] * image_noise)
        packed = self.denoiser.packed
        return packed(original), packed(mix[0] * original + mix[1] * start_noise)

    # -- shapes ------------------------------------------------------------------------------------

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    def shape(self, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
        """Shape of an array that is replicated on every chip."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.everywhere)

    def latents(self, size: Size) -> Shape:
        """(width, height) in pixels -> the shape of the latents."""
        width, height = size
        return height // self.vae.reduction, width // self.vae.reduction, self.denoiser.channels

    def texts(self) -> EncodedPrompt:
        """Shapes of an encoded prompt, on every chip."""
        return jax.tree.map(lambda each: self.shape(each.shape, each.dtype), self.encoder.encoded())

    def functions(self, size: Size) -> dict[str, Callable[[NamedWeights], Any]]:
        """Component -> a function of its weights that uses all that the programs use, on small arrays.

        Of the denoiser and the autoencoder: `PromptEncoder` has its own.
        """
        text, small = self.texts(), 8 * self.vae.reduction
        array, place = self.denoiser.shape(self.latents(size)), self.denoiser.place(self.latents(size))

        def predict(w: NamedWeights) -> jax.Array:
            texts = jax.tree.map(lambda shape: jnp.zeros((1, *shape.shape), shape.dtype), text)
            places = None if place is None else jnp.array(place)[None]
            return self.predict(w, jnp.zeros((1, *array)), jnp.zeros(1), texts, places)

        def both_ways(w: NamedWeights) -> tuple[Any, ...]:
            latents = jnp.zeros((1, 8, 8, self.vae.latents), self.dtype)
            pixels = jnp.zeros((1, small, small, 3), self.dtype)
            latents = self.vae.decodable(w, latents).astype(self.dtype)
            return vae.decode(w, self.vae, latents, "xla"), vae.encode(w, self.vae, pixels, "xla")

        return {self.denoiser.component: predict, "vae": both_ways}

    def forms(self, size: Size) -> dict[str, Any]:
        """Shapes, types and shardings of all weights, from the configs alone."""
        forms = self.encoder.forms()
        forms |= {part: declared(function, self.dtype) for part, function in self.functions(size).items()}

        def placed(form: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return self.shape(form.shape, form.dtype) if form.sharding is None else form

        return jax.tree.map(placed, forms)

    def low_rank(self, forms: Mapping[str, Any], room: LoraRoom) -> LoraForms:
        """Shapes of LoRAs' arrays, for components of these shapes."""
        components = (*self.encoder.adaptable, self.denoiser.component)
        return LoraForms.of({name: forms[name] for name in components}, room, self.dtype, self.everywhere)


def columns(coefficients: jax.Array, like: jax.Array) -> StepCoefficients:
    """All pictures' coefficients at once, [b, COLUMNS + 1], each of the rank of `like`."""
    every = tuple(range(1, like.ndim))
    return StepCoefficients(*(jnp.expand_dims(coefficients[:, i], every) for i in range(COLUMNS)))  # type: ignore[arg-type]  # columns, not numbers


def stack(trees: tuple[Any, ...]) -> Any:
    """Trees of the same form as one, each array with a first axis more."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _interleave(first: jax.Array, second: jax.Array) -> jax.Array:
    """[b, ...] twice -> [2 b, ...]: first, second, first, ..."""
    return jnp.stack([first, second], axis=1).reshape(-1, *first.shape[1:])
