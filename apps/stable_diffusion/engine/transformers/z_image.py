"""Z-Image's transformer (diffusers' `ZImageTransformer2DModel`).

One stream: the picture's patches and the prompt's positions lie in one sequence, and every layer treats both alike. A
few layers go over each of them alone before that. Lengths are filled up to multiples of 32 by learned tokens, which
are attended to like any other; what lies behind those is padding of this program, which is not.
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
from apps.stable_diffusion.engine.transformers.tokens import PlacedTokens, centred, joined, placed, turned

MULTIPLE = 32
"""Lengths are filled up to multiples of this."""
TIME_WIDTH, TIME_SINUSOIDS, TIME_HIDDEN = 256, 256, 1024
HEAD_EPS, LAST_EPS = 1e-5, 1e-6
ALLOWED: dict[str, tuple[Any, ...]] = {
    "all_patch_size": ([2],),
    "all_f_patch_size": ([1],),
    "qk_norm": (True,),
    "siglip_feat_dim": (None,),
}


@dataclass(frozen=True)
class ZImageArchitecture:
    """The sizes of a transformer, from its config."""

    width: int
    layers: int
    refiners: int  # layers over the picture alone, and as many over the prompt alone
    heads: int
    text_width: int
    channels: int  # of the latents
    eps: float
    axes: tuple[int, int, int]  # dimensions of a head that turn with the place in the prompt, the row and the column
    most: tuple[int, int, int]  # coordinates on each of these axes
    theta: float
    time_scale: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ZImageArchitecture":
        """The architecture of a config. Raises CheckpointError for a field that implies a different network."""
        config = {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()}
        refuse_others(config, "transformer", ALLOWED)
        get = partial(needed, config, "transformer")
        width, heads, axes = get("dim"), get("n_heads"), tuple(get("axes_dims"))
        refuse_others(config, "transformer", {"n_kv_heads": (heads,)})
        if len(axes) != 3 or len(get("axes_lens")) != 3 or any(dims % 2 for dims in axes):
            raise CheckpointError("transformer/config.json: axes_dims and axes_lens need three even numbers each")
        if width != heads * sum(axes):
            raise CheckpointError(
                f"transformer/config.json: dim is {width}, but n_heads times the sum of axes_dims {heads * sum(axes)}"
            )
        return cls(
            width=width,
            layers=get("n_layers"),
            refiners=config.get("n_refiner_layers", 2),
            heads=heads,
            text_width=get("cap_feat_dim"),
            channels=get("in_channels"),
            eps=config.get("norm_eps", 1e-5),
            axes=axes,
            most=tuple(get("axes_lens")),
            theta=config.get("rope_theta", 256.0),
            time_scale=config.get("t_scale", 1000.0),
        )

    @property
    def time_width(self) -> int:
        return min(self.width, TIME_WIDTH)

    @property
    def forward_width(self) -> int:
        """Of the feed forward."""
        return int(self.width / 3 * 8)


def predict(
    w: NamedWeights,
    arch: ZImageArchitecture,
    x: jax.Array,
    time: jax.Array,
    text: jax.Array,
    lengths: jax.Array,
    grids: jax.Array,
    attention: str,
) -> jax.Array:
    """The velocity from noise to picture: [n, patches, PATCH * PATCH * channels], of any value in padding.

    Args:
        x: noisy patches, of that shape, those of a picture row by row, then padding.
        time: [n], from 0 (noise) to 1 (picture).
        text: [n, positions, text_width], the prompt's first.
        lengths: [n] positions of each prompt.
        grids: [n, 2] rows and columns of each picture's patches.
    """
    embedded = _embed_time(w["t_embedder"]["mlp"], arch, time, x.dtype)
    pictures, prompts = _picture(w, arch, x, lengths, grids), _prompt(w, arch, text, lengths)
    for i in range(arch.refiners):
        pictures = _layer(w["noise_refiner"][i], arch, pictures, attention, embedded)
        prompts = _layer(w["context_refiner"][i], arch, prompts, attention)
    both = joined(pictures, prompts)
    for i in range(arch.layers):
        both = _layer(w["layers"][i], arch, both, attention, embedded)
    out = both.x[:, : x.shape[1]]
    last = w["all_final_layer"]["2-1"]
    scale = 1 + linear(last["adaLN_modulation"][1], jax.nn.silu(embedded), arch.width)
    return linear(last["linear"], centred(out, LAST_EPS) * scale[:, None], x.shape[-1])


def filled_up(lengths: Any) -> Any:
    """With the learned tokens."""
    return (lengths + MULTIPLE - 1) // MULTIPLE * MULTIPLE


def _embed_time(w: NamedWeights, arch: ZImageArchitecture, time: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[n] -> [n, time_width]."""
    x = sinusoids(time * arch.time_scale, TIME_SINUSOIDS).astype(dtype)
    return linear(w[2], jax.nn.silu(linear(w[0], x, TIME_HIDDEN)), arch.time_width)


def _picture(
    w: NamedWeights, arch: ZImageArchitecture, x: jax.Array, lengths: jax.Array, grids: jax.Array
) -> PlacedTokens:
    """A picture's patches begin behind its prompt; its learned tokens are at the origin."""
    n, positions, _ = x.shape
    x = linear(w["all_x_embedder"]["2-1"], x, arch.width)
    t, columns = jnp.arange(positions)[None], grids[:, 1:]
    count = grids[:, :1] * columns
    real = t < count
    begin = jnp.broadcast_to(filled_up(lengths)[:, None] + 1, (n, positions))
    coordinates = jnp.stack([begin, t // columns, t % columns], axis=-1) * real[..., None]
    x = jnp.where(real[..., None], x, _learned(w, arch, "x_pad_token"))
    return placed(x, coordinates, arch.axes, arch.theta, filled_up(count))


def _prompt(w: NamedWeights, arch: ZImageArchitecture, text: jax.Array, lengths: jax.Array) -> PlacedTokens:
    n, positions, _ = text.shape
    x = rms_norm(w["cap_embedder"][0], text, arch.eps)
    x = linear(w["cap_embedder"][1], x, arch.width)
    t = jnp.broadcast_to(jnp.arange(positions)[None], (n, positions))
    x = jnp.where((t < lengths[:, None])[..., None], x, _learned(w, arch, "cap_pad_token"))
    coordinates = jnp.stack([t + 1, jnp.zeros_like(t), jnp.zeros_like(t)], axis=-1)
    return placed(x, coordinates, arch.axes, arch.theta, filled_up(lengths)[:, None])


def _learned(w: NamedWeights, arch: ZImageArchitecture, name: str) -> jax.Array:
    return w.get(name, arch.width, 1)[:, 0]


def _layer(
    w: NamedWeights, arch: ZImageArchitecture, tokens: PlacedTokens, attention: str, time: jax.Array | None = None
) -> PlacedTokens:
    """Attention and a gated feed forward, each between two norms; scaled and gated by the time, where it is given."""
    x, width = tokens.x, arch.width
    scales: tuple[jax.Array | float, ...] = (1.0, 1.0, 1.0, 1.0)
    if time is not None:
        changes = jnp.split(linear(w["adaLN_modulation"][0], time, 4 * width)[:, None], 4, axis=-1)
        scales = tuple(jnp.tanh(part) if i % 2 else 1 + part for i, part in enumerate(changes))
    attention_scale, attention_gate, forward_scale, forward_gate = scales
    y = rms_norm(w["attention_norm1"], x, arch.eps) * attention_scale
    y = _attention(w["attention"], arch, tokens._replace(x=y), attention)
    x = x + attention_gate * rms_norm(w["attention_norm2"], y, arch.eps)
    y = rms_norm(w["ffn_norm1"], x, arch.eps) * forward_scale
    forward = w["feed_forward"]
    gated = jax.nn.silu(linear(forward["w1"], y, arch.forward_width, bias=False))
    y = linear(forward["w2"], gated * linear(forward["w3"], y, arch.forward_width, bias=False), width, bias=False)
    x = x + forward_gate * rms_norm(w["ffn_norm2"], y, arch.eps)
    return tokens._replace(x=x)


def _attention(w: NamedWeights, arch: ZImageArchitecture, tokens: PlacedTokens, attention: str) -> jax.Array:
    q, k, v = (linear(w[name], tokens.x, arch.width, bias=False) for name in ("to_q", "to_k", "to_v"))
    q, k = (_turned(w[name], arch, x, tokens) for name, x in (("norm_q", q), ("norm_k", k)))
    y = attend(q, k, v, arch.heads, attention, seen=tokens.seen)
    return linear(w["to_out"][0], y, arch.width, bias=False)


def _turned(w: NamedWeights, arch: ZImageArchitecture, x: jax.Array, tokens: PlacedTokens) -> jax.Array:
    """Each head normed, and turned by its token's place."""
    heads = rms_norm(w, x.reshape(*x.shape[:2], arch.heads, -1), HEAD_EPS)
    return turned(heads, tokens).reshape(x.shape).astype(x.dtype)
