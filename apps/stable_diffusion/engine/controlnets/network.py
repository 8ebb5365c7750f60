"""A ControlNet (diffusers' `ControlNetModel`), NHWC.

It is the first half of a UNet, whose first convolution's output also has an image in it, as small as the latents. Each
output that the UNet keeps, and the middle's, goes through a convolution of one pixel, and is added to the UNet's.

Source: Zhang et al. 2023, https://arxiv.org/abs/2302.05543; diffusers' models/controlnets/controlnet.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from apps.stable_diffusion.engine.model.checkpoint import refuse_others
from apps.stable_diffusion.engine.model.layers import conv, resnet
from apps.stable_diffusion.engine.model.unet import (
    Conditioning,
    UNetArchitecture,
    embed_time,
    go_down,
    go_through_middle,
)
from apps.stable_diffusion.engine.model.weights import NamedWeights

COMPONENT = "controlnet"
WITH_ATTENTION, WITHOUT = "UNetMidBlock2DCrossAttn", "UNetMidBlock2D"
"""What is in the middle."""
ALLOWED: dict[str, tuple[Any, ...]] = {
    "conditioning_channels": (3,),
    "controlnet_conditioning_channel_order": ("rgb", "bgr"),
    "mid_block_type": (WITH_ATTENTION, WITHOUT),
}

Residuals = tuple[jax.Array, ...]
"""What is added: for each output that the UNet keeps, and at last for the middle's, [n, h, w, c]."""


@dataclass(frozen=True)
class ControlNetArchitecture:
    """The sizes of a ControlNet, from its config."""

    half: UNetArchitecture
    image: tuple[int, ...]  # channels of the convolutions that make an image small
    plain_middle: bool  # without attention, as in the small ones for XL

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ControlNetArchitecture":
        """The architecture of a config. Raises CheckpointError for a field that implies a different network."""
        refuse_others(config, COMPONENT, ALLOWED)
        middle = config.get("mid_block_type", WITH_ATTENTION)
        return cls(
            half=UNetArchitecture.of({**config, "up_block_types": (), "mid_block_type": WITH_ATTENTION}, COMPONENT),
            image=tuple(config.get("conditioning_embedding_out_channels") or (16, 32, 96, 256)),
            plain_middle=middle == WITHOUT,
        )

    @property
    def reduction(self) -> int:
        """Pixels of an image for each of what it becomes, on each axis."""
        return 2 ** (len(self.image) - 1)

    def shapes(self, height: int, width: int) -> Iterator[tuple[int, int, int]]:
        """Height, width and channels of each of its residuals, for latents of this size."""
        yield height, width, self.half.channels[0]
        for i, channels in enumerate(self.half.channels):
            for _ in range(self.half.resnets):
                yield height, width, channels
            if i < len(self.half.channels) - 1:
                height, width = -(-height // 2), -(-width // 2)
                yield height, width, channels
        yield height, width, self.half.channels[-1]


def embed_image(w: NamedWeights, arch: ControlNetArchitecture, pixels: jax.Array) -> jax.Array:
    """Pixels [b, H, W, 3] of 0 to 1 -> [b, h, w, channels], which are added to the latents' first convolution.

    Their colors are in the order that the network was trained with.
    """
    own = w["controlnet_cond_embedding"]
    x = jax.nn.silu(conv(own["conv_in"], pixels, arch.image[0]))
    for i, (before, after) in enumerate(zip(arch.image, arch.image[1:])):
        x = jax.nn.silu(conv(own["blocks"][2 * i], x, before))
        x = jax.nn.silu(conv(own["blocks"][2 * i + 1], x, after, stride=2))
    return conv(own["conv_out"], x, arch.half.channels[0])


def residuals(
    w: NamedWeights,
    arch: ControlNetArchitecture,
    x: jax.Array,
    image: jax.Array,
    time: jax.Array,
    cond: Conditioning,
    attention: str,
) -> Residuals:
    """What it adds for noisy latents x [b, h, w, 4] at time steps [b], with images as `embed_image` has them."""
    half = arch.half
    embedded = embed_time(w, half, time, cond, x.dtype)
    x = conv(w["conv_in"], x, half.channels[0]) + image
    x, kept = go_down(w, half, x, embedded, cond, attention)
    if arch.plain_middle:
        x = resnet(w["mid_block"]["resnets"][0], x, half.channels[-1], half.groups, half.eps, embedded)
    else:
        x = go_through_middle(w, half, x, embedded, cond, attention)
    parts = [(w["controlnet_down_blocks"][i], one) for i, one in enumerate(kept)] + [(w["controlnet_mid_block"], x)]
    return tuple(conv(own, one, one.shape[-1], size=1) for own, one in parts)
