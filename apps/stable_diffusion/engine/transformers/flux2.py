"""FLUX.2's transformer (diffusers' `Flux2Transformer2DModel`), without an embedding of guidance, as klein has it.

Two streams first, the picture's patches and the prompt's positions, each with weights of its own, which attend to each
other; then one, whose layers compute attention and feed forward side by side, from one product and into one. Scales,
shifts and gates are the same in all layers of a kind: they follow from the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.model.attention import attend
from apps.stable_diffusion.engine.model.checkpoint import needed, refuse_others
from apps.stable_diffusion.engine.model.layers import linear, rms_norm, sinusoids
from apps.stable_diffusion.engine.model.weights import NamedWeights
from apps.stable_diffusion.engine.transformers.tokens import PATCH, PlacedTokens, centred, joined, placed, turned

ALLOWED: dict[str, tuple[Any, ...]] = {"guidance_embeds": (False,), "patch_size": (1,), "out_channels": (None,)}
TIME_SCALE = 1000


@dataclass(frozen=True)
class Flux2Architecture:
    """The sizes of a transformer, from its config."""

    heads: int
    head_dim: int
    double: int  # layers of two streams
    single: int  # layers of one
    forward_width: int  # of the feed forward
    text_width: int
    channels: int  # of the latents
    sinusoids: int  # of the time
    eps: float
    axes: tuple[int, ...]  # dimensions of a head that turn with time, row, column and the place in the prompt
    theta: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Flux2Architecture":
        """The architecture of a config. Raises CheckpointError for a field that implies a different network."""
        refuse_others({"guidance_embeds": True} | dict(config), "transformer", ALLOWED)
        get = partial(needed, config, "transformer")
        heads, head_dim, axes = get("num_attention_heads"), get("attention_head_dim"), tuple(get("axes_dims_rope"))
        if len(axes) != 4 or any(dims % 2 for dims in axes) or sum(axes) != head_dim:
            raise CheckpointError(
                f"transformer/config.json: axes_dims_rope needs four even numbers whose sum is attention_head_dim, "
                f"{head_dim}"
            )
        if get("in_channels") % PATCH**2:
            raise CheckpointError("transformer/config.json: in_channels must be a multiple of 4, of a patch's latents")
        return cls(
            heads=heads,
            head_dim=head_dim,
            double=get("num_layers"),
            single=get("num_single_layers"),
            forward_width=int(heads * head_dim * config.get("mlp_ratio", 3.0)),
            text_width=get("joint_attention_dim"),
            channels=get("in_channels") // PATCH**2,
            sinusoids=config.get("timestep_guidance_channels", 256),
            eps=config.get("eps", 1e-6),
            axes=axes,
            theta=config.get("rope_theta", 2000),
        )

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


def predict(
    w: NamedWeights,
    arch: Flux2Architecture,
    x: jax.Array,
    time: jax.Array,
    text: jax.Array,
    grids: jax.Array,
    attention: str,
) -> jax.Array:
    """The velocity from picture to noise: [n, patches, channels * PATCH * PATCH], of any value in padding.

    Args:
        x: noisy patches, of that shape, those of a picture row by row, then padding.
        time: [n], from 0 (picture) to 1 (noise).
        text: [n, positions, text_width], all of them the prompt's.
        grids: [n, 2] rows and columns of each picture's patches.
    """
    time = _embedded(w["time_guidance_embed"]["timestep_embedder"], arch, time, x.dtype)
    pictures, prompts = _picture(w, arch, x, grids), _prompt(w, arch, text)
    of_picture, of_prompt, of_both = (
        _changes(w[name], arch, time, parts)
        for name, parts in (
            ("double_stream_modulation_img", 2),
            ("double_stream_modulation_txt", 2),
            ("single_stream_modulation", 1),
        )
    )
    for i in range(arch.double):
        layer = w["transformer_blocks"][i]
        pictures, prompts = _double(layer, arch, pictures, prompts, of_picture, of_prompt, attention)
    both = joined(pictures, prompts)
    for i in range(arch.single):
        both = _single(w["single_transformer_blocks"][i], arch, both, of_both, attention)
    out = both.x[:, : x.shape[1]]
    scale, shift = jnp.split(linear(w["norm_out"]["linear"], time, 2 * arch.width, bias=False)[:, None], 2, axis=-1)
    return linear(w["proj_out"], centred(out, arch.eps) * (1 + scale) + shift, x.shape[-1], bias=False)


def _embedded(w: NamedWeights, arch: Flux2Architecture, time: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[n] -> [n, width], as all that reads it takes it."""
    x = sinusoids(time * TIME_SCALE, arch.sinusoids).astype(dtype)
    x = jax.nn.silu(linear(w["linear_1"], x, arch.width, bias=False))
    return jax.nn.silu(linear(w["linear_2"], x, arch.width, bias=False))


def _changes(w: NamedWeights, arch: Flux2Architecture, time: jax.Array, parts: int) -> list[tuple[jax.Array, ...]]:
    """Shift, scale and gate of each part of a layer: [n, 1, width] each."""
    every = jnp.split(linear(w["linear"], time, 3 * parts * arch.width, bias=False)[:, None], 3 * parts, axis=-1)
    return [tuple(every[3 * part : 3 * part + 3]) for part in range(parts)]


def _picture(w: NamedWeights, arch: Flux2Architecture, x: jax.Array, grids: jax.Array) -> PlacedTokens:
    t, columns = jnp.arange(x.shape[1])[None], grids[:, 1:]
    rows = t // columns
    coordinates = jnp.stack([jnp.zeros_like(rows), rows, t % columns, jnp.zeros_like(rows)], axis=-1)
    x = linear(w["x_embedder"], x, arch.width, bias=False)
    return placed(x, coordinates, arch.axes, arch.theta, grids[:, :1] * columns)


def _prompt(w: NamedWeights, arch: Flux2Architecture, text: jax.Array) -> PlacedTokens:
    x = linear(w["context_embedder"], text, arch.width, bias=False)
    place = jnp.broadcast_to(jnp.arange(text.shape[1]), text.shape[:2])
    none = jnp.zeros_like(place)
    return placed(x, jnp.stack([none, none, none, place], axis=-1), arch.axes, arch.theta)


def _double(
    w: NamedWeights,
    arch: Flux2Architecture,
    pictures: PlacedTokens,
    prompts: PlacedTokens,
    of_picture: list[tuple[jax.Array, ...]],
    of_prompt: list[tuple[jax.Array, ...]],
    attention: str,
) -> tuple[PlacedTokens, PlacedTokens]:
    """A layer of two streams."""
    streams = (pictures, of_picture), (prompts, of_prompt)
    names = (
        ("to_q", "to_k", "to_v", "norm_q", "norm_k"),
        (
            *("add_q_proj", "add_k_proj", "add_v_proj"),
            *("norm_added_q", "norm_added_k"),
        ),
    )
    every = []
    for (tokens, changes), own in zip(streams, names):
        y = _changed(tokens.x, changes[0], arch)
        q, k, v = (linear(w["attn"][name], y, arch.width, bias=False) for name in own[:3])
        every.append((_turned(w["attn"][own[3]], arch, q, tokens), _turned(w["attn"][own[4]], arch, k, tokens), v))
    q, k, v = (jnp.concatenate(each, axis=1) for each in zip(*every))
    y = attend(q, k, v, arch.heads, attention, seen=joined(pictures, prompts).seen)
    between = pictures.x.shape[1]
    ends = (w["attn"]["to_out"][0], w["ff"], y[:, :between]), (w["attn"]["to_add_out"], w["ff_context"], y[:, between:])
    made = []
    for (tokens, changes), (out, forward, part) in zip(streams, ends):
        x = tokens.x + changes[0][2] * linear(out, part, arch.width, bias=False)
        y = linear(forward["linear_in"], _changed(x, changes[1], arch), 2 * arch.forward_width, bias=False)
        y = linear(forward["linear_out"], _gated(y), arch.width, bias=False)
        made.append(tokens._replace(x=x + changes[1][2] * y))
    return made[0], made[1]


def _single(
    w: NamedWeights, arch: Flux2Architecture, tokens: PlacedTokens, changes: list[tuple[jax.Array, ...]], attention: str
) -> PlacedTokens:
    """A layer of one stream."""
    own, width = w["attn"], arch.width
    y = _changed(tokens.x, changes[0], arch)
    y = linear(own["to_qkv_mlp_proj"], y, 3 * width + 2 * arch.forward_width, bias=False)
    q, k, v, forward = jnp.split(y, [width, 2 * width, 3 * width], axis=-1)
    q, k = _turned(own["norm_q"], arch, q, tokens), _turned(own["norm_k"], arch, k, tokens)
    y = attend(q, k, v, arch.heads, attention, seen=tokens.seen)
    y = linear(own["to_out"], jnp.concatenate([y, _gated(forward)], axis=-1), width, bias=False)
    return tokens._replace(x=tokens.x + changes[0][2] * y)


def _changed(x: jax.Array, changes: tuple[jax.Array, ...], arch: Flux2Architecture) -> jax.Array:
    shift, scale, _ = changes
    return centred(x, arch.eps) * (1 + scale) + shift


def _gated(x: jax.Array) -> jax.Array:
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


def _turned(w: NamedWeights, arch: Flux2Architecture, x: jax.Array, tokens: PlacedTokens) -> jax.Array:
    """Each head normed, and turned by its token's place."""
    heads = rms_norm(w, x.reshape(*x.shape[:2], arch.heads, -1), arch.eps)
    return turned(heads, tokens).reshape(x.shape).astype(x.dtype)
