"""The autoencoder between pixels and latents (diffusers' `AutoencoderKL` and `AutoencoderKLFlux2`), NHWC; pixels are
from -1 to 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from apps.stable_diffusion.engine.model.attention import attend
from apps.stable_diffusion.engine.model.checkpoint import needed, refuse_others
from apps.stable_diffusion.engine.model.layers import conv, group_norm, linear, resnet, upsample
from apps.stable_diffusion.engine.model.weights import NamedWeights

PATCH = 2

EPS = 1e-6
ALLOWED: dict[str, tuple[Any, ...]] = {
    "act_fn": ("silu", "swish"),
    "in_channels": (3,),
    "out_channels": (3,),
    "latents_mean": (None,),
    "latents_std": (None,),
    "patch_size": ([PATCH, PATCH], (PATCH, PATCH), None),
}


@dataclass(frozen=True)
class VaeArchitecture:
    """The sizes of an autoencoder, from its config."""

    channels: tuple[int, ...]  # at each resolution, from the finest
    resnets: int  # at each resolution of the encoder; one more in the decoder
    groups: int
    attention: bool  # in the middle
    quant_conv: bool
    post_quant_conv: bool
    latents: int  # channels of the latents
    scaling: float  # the denoiser's latents are the encoder's, less `shift`, times this
    shift: float
    decoder_channels: tuple[int, ...]  # as `channels`, of the decoder
    squares_eps: float | None  # the denoiser's are normed, each place of a square by itself (FLUX.2); None: not

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "VaeArchitecture":
        """The architecture of a config. Raises CheckpointError for a field that implies a different network."""
        refuse_others(config, "vae", ALLOWED)
        for side in ("down", "up"):
            kind = "DownEncoderBlock2D" if side == "down" else "UpDecoderBlock2D"
            name = f"{side}_block_types"
            other = next((block for block in config.get(name, ()) if block != kind), kind)
            refuse_others({name: other}, "vae", {name: (kind,)})
        get, normed = partial(needed, config, "vae"), config.get("_class_name") == "AutoencoderKLFlux2"
        channels = tuple(get("block_out_channels"))
        return cls(
            channels=channels,
            resnets=get("layers_per_block"),
            groups=config.get("norm_num_groups", 32),
            attention=config.get("mid_block_add_attention", True),
            quant_conv=config.get("use_quant_conv", True),
            post_quant_conv=config.get("use_post_quant_conv", True),
            latents=config.get("latent_channels", 32 if normed else 4),
            scaling=1.0 if normed else config.get("scaling_factor", 0.18215),
            shift=config.get("shift_factor") or 0.0,
            decoder_channels=tuple(config.get("decoder_block_out_channels") or channels),
            squares_eps=config.get("batch_norm_eps", 1e-4) if normed else None,
        )

    @property
    def reduction(self) -> int:
        """Pixels per latent, on each axis."""
        return 2 ** (len(self.channels) - 1)

    def denoisable(self, w: NamedWeights, latents: jax.Array) -> jax.Array:
        """The encoder's latents [..., h, w, latents] as the denoiser has them."""
        if self.squares_eps is not None:
            mean, deviation = self._squares(w["bn"], self.squares_eps, latents.shape)
            return (latents - mean) / deviation
        return (latents - self.shift if self.shift else latents) * self.scaling

    def decodable(self, w: NamedWeights, latents: jax.Array) -> jax.Array:
        """The denoiser's latents as the decoder has them."""
        if self.squares_eps is not None:
            mean, deviation = self._squares(w["bn"], self.squares_eps, latents.shape)
            return latents * deviation + mean
        latents = latents / self.scaling
        return latents + self.shift if self.shift else latents

    def _squares(self, w: NamedWeights, eps: float, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Mean and standard deviation of each latent, by its place in its square: [h, w, latents]."""
        mean, variance = (w.get(f"running_{name}", PATCH**2 * self.latents) for name in ("mean", "var"))
        rows, columns = shape[-3] // PATCH, shape[-2] // PATCH

        def spread(values: jax.Array) -> jax.Array:
            square = values.reshape(self.latents, PATCH, PATCH).transpose(1, 2, 0)
            return jnp.tile(square, (rows, columns, 1))

        return spread(mean.astype(jnp.float32)), spread(jnp.sqrt(variance.astype(jnp.float32) + eps))


def encode(w: NamedWeights, arch: VaeArchitecture, pixels: jax.Array, attention: str) -> tuple[jax.Array, jax.Array]:
    """[b, H, W, 3] -> the latents' mean and standard deviation, [b, h, w, latents] each, before scaling."""
    e = w["encoder"]
    x = conv(e["conv_in"], pixels, arch.channels[0])
    for i, out in enumerate(arch.channels):
        block = e["down_blocks"][i]
        for j in range(arch.resnets):
            x = resnet(block["resnets"][j], x, out, arch.groups, EPS)
        if i < len(arch.channels) - 1:
            x = conv(block["downsamplers"][0]["conv"], x, out, stride=2, padding=(0, 1))
    x = _middle(e["mid_block"], arch, x, attention)
    x = conv(e["conv_out"], jax.nn.silu(group_norm(e["conv_norm_out"], x, arch.groups, EPS)), 2 * arch.latents)
    if arch.quant_conv:
        x = conv(w["quant_conv"], x, 2 * arch.latents, size=1)
    mean, log_variance = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return mean, jnp.exp(0.5 * jnp.clip(log_variance, -30, 20))


def decode(w: NamedWeights, arch: VaeArchitecture, latents: jax.Array, attention: str) -> jax.Array:
    """[b, h, w, latents], unscaled -> [b, H, W, 3] float32."""
    d, x = w["decoder"], latents
    if arch.post_quant_conv:
        x = conv(w["post_quant_conv"], x, arch.latents, size=1)
    x = conv(d["conv_in"], x, arch.decoder_channels[-1])
    x = _middle(d["mid_block"], arch, x, attention)
    for i, out in enumerate(reversed(arch.decoder_channels)):
        block = d["up_blocks"][i]
        for j in range(arch.resnets + 1):
            x = resnet(block["resnets"][j], x, out, arch.groups, EPS)
        if i < len(arch.channels) - 1:
            x = upsample(block["upsamplers"][0], x, (2 * x.shape[1], 2 * x.shape[2]))
    x = jax.nn.silu(group_norm(d["conv_norm_out"], x, arch.groups, EPS))
    return conv(d["conv_out"], x, 3).astype(jnp.float32)


def _middle(w: NamedWeights, arch: VaeArchitecture, x: jax.Array, attention: str) -> jax.Array:
    channels = x.shape[-1]
    x = resnet(w["resnets"][0], x, channels, arch.groups, EPS)
    if arch.attention:
        a = w["attentions"][0]
        h = group_norm(a["group_norm"], x, arch.groups, EPS).reshape(len(x), -1, channels)
        q, k, v = (linear(a[name], h, channels) for name in ("to_q", "to_k", "to_v"))
        x = x + linear(a["to_out"][0], attend(q, k, v, 1, attention), channels).reshape(x.shape)
    return resnet(w["resnets"][1], x, channels, arch.groups, EPS)
