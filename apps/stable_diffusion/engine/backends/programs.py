"""The programs that `JaxBackend` compiles, as functions of weights and arrays.

A picture being made is a handful of small arrays, replicated on every chip. The denoising program takes the pictures of
a batch as separate arguments, stacks them, runs each chip's share through the UNet (with guidance a picture takes two
passes, with and without the prompt, possibly on two chips) and returns them separately: so pictures join and leave a
batch without an extra copy or program.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import Key, ProgramSpec
from apps.stable_diffusion.engine.backends.schedules import COLUMNS, StepCoefficients
from apps.stable_diffusion.engine.backends.trajectory import LATENT_CHANNELS
from apps.stable_diffusion.engine.model import text_encoder, unet, vae
from apps.stable_diffusion.engine.model.weights import NamedWeights

log = logging.getLogger("podslice")
TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
OFF = ("xla_tpu_run_space_to_batch", "xla_tpu_run_space_to_batch_on_new_platforms")
"""Passes that split a picture's width into batches where a chip has few pictures: twice the time of the convolution."""
AllWeights = Mapping[str, Mapping[str, jax.Array]]
"""Component -> tensor's name -> array."""


class EncodedPrompt(NamedTuple):
    """An encoded prompt."""

    context: jax.Array  # [positions, d]
    pooled: jax.Array | None  # [e], of XL


class DenoisingState(NamedTuple):
    """The arrays that a step changes, float32."""

    latents: jax.Array  # [h, w, 4]
    estimate: jax.Array  # [h, w, 4] of the final latents


class PictureInputs(NamedTuple):
    """A picture's inputs; the same arrays in all its steps."""

    prompt: EncodedPrompt
    negative: EncodedPrompt | None  # None without guidance
    mask: jax.Array  # [h, w, 1] float32; 0 keeps the original
    original: jax.Array  # [h, w, 4] latents of the image of which parts are kept
    start_noise: jax.Array  # [h, w, 4]


@dataclass(frozen=True)
class Programs:
    """A model's functions on a mesh with the axis `data`."""

    mesh: Mesh
    text_configs: tuple[Mapping[str, Any], ...]
    unet: unet.UNetArchitecture
    vae: vae.VaeArchitecture
    attention: str  # see `attention.attend`
    dtype: jnp.dtype
    guided: bool

    def encode_text(self, weights: AllWeights, ids: tuple[jax.Array, ...]) -> EncodedPrompt:
        """One prompt; ids [1, positions] for each text encoder."""
        encoded = [self.text(i, NamedWeights(weights[TEXT_ENCODERS[i]]), ids[i]) for i in range(len(self.text_configs))]
        pooled = encoded[-1][1]
        context = jnp.concatenate([context for context, _ in encoded], axis=-1)
        return EncodedPrompt(context[0], None if pooled is None else pooled[0])

    def text(self, i: int, weights: NamedWeights, ids: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Run the i-th text encoder: [1, positions] -> [1, positions, hidden], and [1, e] of XL's second."""
        is_xl = len(self.text_configs) == 2
        return text_encoder.encode(weights, self.text_configs[i], ids, is_xl, is_xl and i == 1)

    def predict(self, weights: NamedWeights, x: jax.Array, time: jax.Array, text: EncodedPrompt) -> jax.Array:
        """The UNet's output for latents [n, h, w, 4] at times [n] with stacked texts: [n, h, w, 4] float32."""
        sizes = None
        if self.unet.size_width is not None:
            height, width = (side * self.vae.reduction for side in x.shape[1:3])
            sizes = jnp.tile(jnp.array([height, width, 0, 0, height, width], jnp.float32), (len(x), 1))
        cond = unet.Conditioning(text.context, text.pooled, sizes)
        out = unet.predict(weights, self.unet, x.astype(self.dtype), time, cond, self.attention)
        return out.astype(jnp.float32)

    def denoise(
        self,
        weights: Mapping[str, jax.Array],
        coefficients: jax.Array,
        states: tuple[DenoisingState, ...],
        inputs: tuple[PictureInputs, ...],
        noises: tuple[jax.Array, ...],
    ) -> tuple[DenoisingState, ...]:
        """One step of b pictures, passed separately.

        Args:
            coefficients: [b, COLUMNS + 1], each picture's (see `schedules`) and its guidance scale.
            noises: [h, w, 4] each.
        """
        state, fixed, noise = _stack(states), _stack(inputs), jnp.stack(noises)
        step = StepCoefficients(*(coefficients[:, i, None, None, None] for i in range(COLUMNS)))  # type: ignore[arg-type]  # columns, not numbers: of all pictures at once
        x, time, text = step.scale * state.latents, coefficients[:, 0], fixed.prompt
        if self.guided:  # n = 2 b; without guidance n = b
            x, time = x.repeat(2, axis=0), time.repeat(2)
            text = jax.tree.map(_interleave, fixed.negative, fixed.prompt)
        share = P("data")  # the chips share the n passes through the network; the rest is small, and replicated
        predict = jax.shard_map(
            lambda weights, *arrays: self.predict(NamedWeights(weights), *arrays),
            mesh=self.mesh,
            in_specs=(P(), share, share, share),
            out_specs=share,
            check_vma=False,
        )
        out = jax.lax.with_sharding_constraint(predict(weights, x, time, text), NamedSharding(self.mesh, P()))
        if self.guided:
            out = out[::2] + coefficients[:, COLUMNS, None, None, None] * (out[1::2] - out[::2])
        estimate = step.from_sample * state.latents + step.from_output * out
        latents = step.keep * state.latents + step.toward * estimate + step.momentum * state.estimate
        latents = latents + step.jitter * noise
        kept = step.original * fixed.original + step.noise * fixed.start_noise
        latents = fixed.mask * latents + (1 - fixed.mask) * kept
        return tuple(DenoisingState(latents[i], estimate[i]) for i in range(len(states)))

    def decode(self, weights: Mapping[str, jax.Array], latents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        """One picture [h, w, 4] for each chip -> [chips, H, W, 3] uint8, and [chips] whether its numbers are finite."""

        def each(weights: Mapping[str, jax.Array], latents: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = (latents / self.vae.scaling).astype(self.dtype)
            pixels = vae.decode(NamedWeights(weights), self.vae, x, self.attention)
            finite = jnp.isfinite(jnp.max(jnp.abs(pixels), axis=(1, 2, 3)))  # a maximum is NaN where a number is
            return jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255).astype(jnp.uint8), finite

        share = P("data")
        decoded = jax.shard_map(each, mesh=self.mesh, in_specs=(P(), share), out_specs=share, check_vma=False)
        return decoded(weights, jnp.stack(latents))

    def encode_image(
        self,
        weights: Mapping[str, jax.Array],
        image: jax.Array,
        image_noise: jax.Array,
        start_noise: jax.Array,
        mix: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Pixels [H, W, 3] uint8 -> their latents, and mix[0] * latents + mix[1] * noise: [h, w, 4] each."""

        def whole(weights: Mapping[str, jax.Array], image: jax.Array) -> tuple[jax.Array, jax.Array]:
            pixels = (image[None].astype(jnp.float32) / 255 * 2 - 1).astype(self.dtype)
            return vae.encode(NamedWeights(weights), self.vae, pixels, self.attention)

        split = jax.shard_map(whole, mesh=self.mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
        mean, deviation = split(weights, image)
        original = (mean[0] + deviation[0] * image_noise) * self.vae.scaling
        return original, mix[0] * original + mix[1] * start_noise

    # -- programs to compile ------------------------------------------------------------------------------------

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    def shape(self, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
        """Shape of an array that is replicated on every chip."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.everywhere)

    def latents(self, size: tuple[int, int]) -> tuple[int, int, int]:
        """(width, height) in pixels -> the shape of the latents."""
        width, height = size
        return height // self.vae.reduction, width // self.vae.reduction, LATENT_CHANNELS

    def texts(self, length: int) -> EncodedPrompt:
        """Shapes of an encoded prompt of this many positions."""
        width = sum(config["hidden_size"] for config in self.text_configs)
        is_xl = len(self.text_configs) == 2
        pooled = self.shape((self.text_configs[1]["projection_dim"],), self.dtype) if is_xl else None
        return EncodedPrompt(self.shape((length, width), self.dtype), pooled)  # type: ignore[arg-type]  # shapes in the arrays' places

    def functions(self, lengths: tuple[int, ...], size: tuple[int, int]) -> dict[str, Callable[[NamedWeights], Any]]:
        """Component -> a function of its weights that uses all that the programs use, on small arrays."""
        text, small = self.texts(lengths[0]), 8 * self.vae.reduction

        def predict(w: NamedWeights) -> jax.Array:
            texts = jax.tree.map(lambda shape: jnp.zeros((1, *shape.shape), shape.dtype), text)
            return self.predict(w, jnp.zeros((1, *self.latents(size))), jnp.zeros(1), texts)

        def both_ways(w: NamedWeights) -> tuple[Any, ...]:
            latents = jnp.zeros((1, 8, 8, LATENT_CHANNELS), self.dtype)
            pixels = jnp.zeros((1, small, small, 3), self.dtype)
            return vae.decode(w, self.vae, latents, "xla"), vae.encode(w, self.vae, pixels, "xla")

        encoders = {
            TEXT_ENCODERS[i]: lambda w, i=i: self.text(i, w, jnp.zeros((1, lengths[i]), np.int32))
            for i in range(len(self.text_configs))
        }
        return encoders | {"unet": predict, "vae": both_ways}

    def listed(
        self,
        arrays: Mapping[str, Any],
        lengths: tuple[int, ...],
        sizes: tuple[tuple[int, int], ...],
        batch_sizes: tuple[int, ...],
    ) -> Iterator[ProgramSpec]:
        """Every program that requests need. The weights come first among its arguments.

        Keys: `("text",)`, and for each size `("denoise", size, pictures)`, `("decode", size)` and `("image", size)`.

        Args:
            arrays: shapes of the weights, component -> tensor's name -> shape.
            lengths: positions of each text encoder.
            sizes: (width, height) in pixels.
        """

        def spec(key: Key, function: Callable[..., Any], *arguments: Any, **options: Any) -> ProgramSpec:
            return ProgramSpec(key, self._precise(function), arguments, out_shardings=self.everywhere, **options)

        texts = {name: arrays[name] for name in arrays if name in TEXT_ENCODERS}
        yield spec(("text",), self.encode_text, texts, tuple(self.shape((1, length), np.int32) for length in lengths))
        text = self.texts(lengths[0])
        # Not for the others: the decoder would compile for over ten minutes of CPU, not three and a half.
        options = {"donate": (2,), "options": _compiler_options(self.mesh.devices.flat[0])}
        for size in sizes:
            latents = self.shape(self.latents(size))
            mask = self.shape((*latents.shape[:2], 1))
            state = DenoisingState(latents, latents)  # type: ignore[arg-type]  # shapes in the arrays' places
            fixed = PictureInputs(text, text if self.guided else None, mask, latents, latents)  # type: ignore[arg-type]  # shapes in the arrays' places
            for b in batch_sizes:
                coefficients = self.shape((b, COLUMNS + 1))
                arguments = arrays["unet"], coefficients, (state,) * b, (fixed,) * b, (latents,) * b
                yield spec(("denoise", size, b), self.denoise, *arguments, **options)
            yield spec(("decode", size), self.decode, arrays["vae"], (latents,) * self.mesh.size)
            image = self.shape((size[1], size[0], 3), np.uint8)
            yield spec(("image", size), self.encode_image, arrays["vae"], image, latents, latents, self.shape((2,)))

    def _precise(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """With float32, make a TPU multiply in float32 too, not in bfloat16."""
        precision = "highest" if self.dtype == np.float32 else "default"
        return jax.default_matmul_precision(precision)(function)


def _compiler_options(device: jax.Device) -> dict[str, bool]:
    """The options that this device's compiler has: their names change between versions of libtpu."""
    options: dict[str, bool] = {}
    for name in OFF if device.platform == "tpu" else ():
        one = jax.ShapeDtypeStruct((), np.float32, sharding=jax.sharding.SingleDeviceSharding(device))
        try:
            ProgramSpec((name,), jnp.negative, (one,), options={name: False}).compiled()
            options[name] = False
        except jax.errors.JaxRuntimeError as error:
            log.warning("pictures may take longer, with few of them on a chip: %s", error)
    return options


def _stack(trees: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _interleave(first: jax.Array, second: jax.Array) -> jax.Array:
    """[b, ...] twice -> [2 b, ...]: first, second, first, ..."""
    return jnp.stack([first, second], axis=1).reshape(-1, *first.shape[1:])
