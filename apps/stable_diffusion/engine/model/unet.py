"""The UNet of Stable Diffusion 1.x, 2.x and XL (diffusers' `UNet2DConditionModel`), NHWC.

Down: resnets, at some sizes each followed by a transformer that attends to the picture and to the text; every
output is kept. Middle. Up: the same again, each resnet reading what was kept at its size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from apps.stable_diffusion.engine.model.attention import attend, head_lanes, pad_heads
from apps.stable_diffusion.engine.model.checkpoint import needed, refuse_others
from apps.stable_diffusion.engine.model.layers import (
    conv,
    group_norm,
    layer_norm,
    linear,
    resnet,
    sinusoids,
    upsample,
)
from apps.stable_diffusion.engine.model.low_rank import LoraPair, plus
from apps.stable_diffusion.engine.model.weights import NamedWeights

BLOCKS = {"DownBlock2D": False, "CrossAttnDownBlock2D": True, "UpBlock2D": False, "CrossAttnUpBlock2D": True}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "act_fn": ("silu", "swish"),
    "addition_embed_type": (None, "text_time"),
    "attention_type": ("default",),
    "center_input_sample": (False,),
    "class_embed_type": (None,),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "cross_attention_norm": (None,),
    "downsample_padding": (1,),
    "dual_cross_attention": (False,),
    "encoder_hid_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "in_channels": (4,),
    "mid_block_only_cross_attention": (None, False),
    "mid_block_scale_factor": (1,),
    "mid_block_type": ("UNetMidBlock2DCrossAttn",),
    "num_class_embeds": (None,),
    "out_channels": (4,),
    "resnet_out_scale_factor": (1, 1.0),
    "resnet_skip_time_act": (False,),
    "resnet_time_scale_shift": ("default",),
    "reverse_transformer_layers_per_block": (None,),
    "time_cond_proj_dim": (None,),
    "time_embedding_act_fn": (None,),
    "time_embedding_type": ("positional",),
    "timestep_post_act": (None,),
}


@dataclass(frozen=True)
class Conditioning:
    """What pictures are conditioned on. `pooled` and `sizes` are XL's only."""

    context: jax.Array
    """[b, positions, d]"""
    pooled: jax.Array | None = None
    """[b, e]"""
    sizes: jax.Array | None = None
    """[b, 6]: original height and width, crop's top and left, target height and width, in pixels."""
    seen: jax.Array | None = None
    """[b, positions] bool: those of the context that count; None: all."""


@dataclass(frozen=True)
class UNetArchitecture:
    """The sizes of a UNet, from its config."""

    channels: tuple[int, ...]  # at each resolution, from the finest
    heads: tuple[int, ...]  # of the attentions there
    depths: tuple[int, ...]  # transformer blocks of each attention there
    down: tuple[bool, ...]  # whether there are attentions on the way down
    up: tuple[bool, ...]  # and up, from the coarsest
    resnets: int  # at each resolution on the way down; one more on the way up
    groups: int
    eps: float
    linear_projection: bool
    flip: bool
    shift: float
    time_width: int
    size_width: int | None  # sinusoids of each of XL's size numbers

    @classmethod
    def of(cls, config: Mapping[str, Any], component: str = "unet") -> "UNetArchitecture":
        """The architecture of a config. Raises CheckpointError for a field that implies a different network."""
        refuse_others(config, component, ALLOWED)
        get = partial(needed, config, component)
        blocks = tuple(name for key in ("down_block_types", "up_block_types") for name in get(key))
        for name in ("down_block_types", "up_block_types"):
            refuse_others(
                {name: next((b for b in get(name) if b not in BLOCKS), None)}, component, {name: (None, *BLOCKS)}
            )
        only_cross = config.get("only_cross_attention", False)
        if only_cross if isinstance(only_cross, bool) else any(only_cross):
            refuse_others(config, component, {"only_cross_attention": (False,)})
        if not isinstance(get("layers_per_block"), int):
            refuse_others(config, component, {"layers_per_block": (1, 2)})
        channels = tuple(get("block_out_channels"))
        levels = len(channels)

        def each(value: Any) -> tuple[int, ...]:
            return tuple(value) if isinstance(value, (list, tuple)) else (value,) * levels

        return cls(
            channels=channels,
            # Misnamed when the first models were published: attention_head_dim is the number of heads.
            heads=each(config.get("num_attention_heads") or get("attention_head_dim")),
            depths=each(config.get("transformer_layers_per_block", 1)),
            down=tuple(BLOCKS[name] for name in blocks[:levels]),
            up=tuple(BLOCKS[name] for name in blocks[levels:]),
            resnets=get("layers_per_block"),
            groups=config.get("norm_num_groups", 32),
            eps=config.get("norm_eps", 1e-5),
            linear_projection=config.get("use_linear_projection", False),
            flip=config.get("flip_sin_to_cos", True),
            shift=config.get("freq_shift", 0),
            time_width=config.get("time_embedding_dim") or 4 * channels[0],
            size_width=get("addition_time_embed_dim") if config.get("addition_embed_type") else None,
        )


def predict(
    w: NamedWeights,
    arch: UNetArchitecture,
    x: jax.Array,
    time: jax.Array,
    cond: Conditioning,
    attention: str,
    added: tuple[jax.Array, ...] | None = None,
) -> jax.Array:
    """The network's prediction for noisy latents x [b, h, w, 4] at time steps [b]: [b, h, w, 4].

    Args:
        added: what ControlNets add to each output that is kept, and to the middle's.
    """
    embedded = embed_time(w, arch, time, cond, x.dtype)
    x, kept = go_down(w, arch, conv(w["conv_in"], x, arch.channels[0]), embedded, cond, attention)
    x = go_through_middle(w, arch, x, embedded, cond, attention)
    if added is not None:
        kept, x = [own + more for own, more in zip(kept, added[:-1])], x + added[-1]
    for i, out in enumerate(reversed(arch.channels)):
        block = w["up_blocks"][i]
        for j in range(arch.resnets + 1):
            x = jnp.concatenate([x, kept.pop()], axis=-1)
            x = resnet(block["resnets"][j], x, out, arch.groups, arch.eps, embedded)
            if arch.up[i]:
                x = _transformer(block["attentions"][j], arch, -1 - i, x, cond, attention)
        if kept:
            x = upsample(block["upsamplers"][0], x, (kept[-1].shape[1], kept[-1].shape[2]))
    x = jax.nn.silu(group_norm(w["conv_norm_out"], x, arch.groups, arch.eps))
    return conv(w["conv_out"], x, 4)


def go_down(
    w: NamedWeights, arch: UNetArchitecture, x: jax.Array, embedded: jax.Array, cond: Conditioning, attention: str
) -> tuple[jax.Array, list[jax.Array]]:
    """From the first convolution's output [b, h, w, c] to the coarsest, and every output that is kept."""
    kept = [x]
    for i, out in enumerate(arch.channels):
        block = w["down_blocks"][i]
        for j in range(arch.resnets):
            x = resnet(block["resnets"][j], x, out, arch.groups, arch.eps, embedded)
            if arch.down[i]:
                x = _transformer(block["attentions"][j], arch, i, x, cond, attention)
            kept.append(x)
        if i < len(arch.channels) - 1:
            x = conv(block["downsamplers"][0]["conv"], x, out, stride=2)
            kept.append(x)
    return x, kept


def go_through_middle(
    w: NamedWeights, arch: UNetArchitecture, x: jax.Array, embedded: jax.Array, cond: Conditioning, attention: str
) -> jax.Array:
    """At the coarsest size: [b, h, w, c] -> the same."""
    middle, out = w["mid_block"], arch.channels[-1]
    x = resnet(middle["resnets"][0], x, out, arch.groups, arch.eps, embedded)
    x = _transformer(middle["attentions"][0], arch, -1, x, cond, attention)
    return resnet(middle["resnets"][1], x, out, arch.groups, arch.eps, embedded)


def embed_time(
    w: NamedWeights, arch: UNetArchitecture, time: jax.Array, cond: Conditioning, dtype: jnp.dtype
) -> jax.Array:
    """[b] -> [b, time_width]."""

    def embed(name: str, x: jax.Array) -> jax.Array:
        h = jax.nn.silu(linear(w[name]["linear_1"], x.astype(dtype), arch.time_width))
        return linear(w[name]["linear_2"], h, arch.time_width)

    embedded = embed("time_embedding", sinusoids(time, arch.channels[0], arch.flip, arch.shift))
    if arch.size_width is None:
        return embedded
    assert cond.sizes is not None and cond.pooled is not None  # XL's
    sizes = sinusoids(cond.sizes, arch.size_width, arch.flip, arch.shift).reshape(len(cond.sizes), -1)
    return embedded + embed("add_embedding", jnp.concatenate([cond.pooled.astype(jnp.float32), sizes], axis=-1))


def _transformer(
    w: NamedWeights, arch: UNetArchitecture, level: int, x: jax.Array, cond: Conditioning, attention: str
) -> jax.Array:
    """Blocks of self attention, attention to the text and a gated feed forward, over all pixels."""
    b, height, width, channels = x.shape
    heads = arch.heads[level]

    def project(name: str, y: jax.Array) -> jax.Array:  # a 1x1 convolution in older models
        return linear(w[name], y, channels) if arch.linear_projection else conv(w[name], y, channels, size=1)

    y = project("proj_in", group_norm(w["norm"], x, arch.groups, 1e-6)).reshape(b, height * width, channels)
    for i in range(arch.depths[level]):
        block = w["transformer_blocks"][i]
        h = layer_norm(block["norm1"], y)
        y = y + _attention(block["attn1"], h, h, heads, attention)
        y = y + _attention(block["attn2"], layer_norm(block["norm2"], y), cond.context, heads, attention, cond.seen)
        forward = block["ff"]["net"]
        h = _gated(forward[0]["proj"], layer_norm(block["norm3"], y), 4 * channels)
        y = y + linear(forward[2], h, channels)
    return x + project("proj_out", y.reshape(b, height, width, channels))


def _attention(
    w: NamedWeights, x: jax.Array, context: jax.Array, heads: int, attention: str, seen: jax.Array | None = None
) -> jax.Array:
    """[b, n, c] attends to [b, m, d], of which those [b, m] count that are seen."""
    channels = x.shape[-1]
    head_dim = channels // heads
    lanes = head_lanes(heads, head_dim, x.shape[1], context.shape[1], attention)

    def project(name: str, y: jax.Array) -> jax.Array:
        pair = w[name].low_rank
        if pair is not None:
            pair = LoraPair(pair.down, pad_heads(pair.up, heads, lanes))
        return plus(y @ pad_heads(w[name].get("weight", y.shape[-1], channels), heads, lanes), pair, y)

    q, k, v = project("to_q", x), project("to_k", context), project("to_v", context)
    out = w["to_out"][0]
    y = attend(q, k, v, heads, attention, head_dim=head_dim, seen=seen)
    if (pair := out.low_rank) is not None:
        pair = LoraPair(pad_heads(pair.down, heads, lanes), pair.up)
    y = plus(y @ pad_heads(out.get("weight", channels, channels), heads, lanes, axis=0), pair, y)
    return y + out.get("bias", channels)


def _gated(w: NamedWeights, x: jax.Array, width: int) -> jax.Array:
    """[..., in] -> [..., width], each gated by a GELU of its own. Two products, so that the gate is not written out.

    In bfloat16 the gate is GELU's tanh form: by the compiler's count, a feed-forward of 4096 x 320 takes two thirds of
    the time on v5e. In the demo's UNet the output differs from float32's by 1.2 to 2.6 % (RMS) with either.
    """
    weight, bias = w.get("weight", x.shape[-1], 2 * width), w.get("bias", 2 * width)
    pair = w.low_rank

    def product(part: slice) -> jax.Array:
        own = None if pair is None else LoraPair(pair.down, pair.up[..., part])
        return plus(x @ weight[:, part], own, x) + bias[part]

    value, gate = product(slice(width)), product(slice(width, None))
    return value * jax.nn.gelu(gate, approximate=x.dtype == jnp.bfloat16)
