"""The layers that Stable Diffusion's networks share, as functions of weights; images are [batch, height, width, c].

Norms and softmaxes are computed in float32 whatever the weights' type, because their statistics need it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from apps.stable_diffusion.engine.model.weights import NamedWeights, undo_by_parity


def linear(w: NamedWeights, x: jax.Array, out: int, bias: bool = True) -> jax.Array:
    """[..., in] -> [..., out]."""
    y = x @ w.get("weight", x.shape[-1], out)
    return y + w.get("bias", out) if bias else y


def conv(
    w: NamedWeights, x: jax.Array, out: int, size: int = 3, stride: int = 1, padding: tuple[int, int] | None = None
) -> jax.Array:
    """[b, h, w, in] -> [b, h / stride, w / stride, out]; `padding` before and after, on both axes."""
    kernel = w.get("weight", size, size, x.shape[-1], out)
    around = padding or (size // 2, size // 2)
    return _convolve(x, kernel, (around, around), stride) + w.get("bias", out)


def _convolve(x: jax.Array, kernel: jax.Array, padding: Sequence[tuple[int, int]], stride: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=numbers)


def layer_norm(w: NamedWeights, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """[..., c]. Both moments at once, because reading the array again for the second takes as long as the first."""
    scale, shift = (w.get(name, x.shape[-1]).astype(jnp.float32) for name in ("weight", "bias"))
    h = x.astype(jnp.float32)
    mean, square = h.mean(-1, keepdims=True), (h * h).mean(-1, keepdims=True)
    h = (h - mean) * lax.rsqrt(jnp.maximum(square - mean * mean, 0) + eps)
    return (h * scale + shift).astype(x.dtype)


def group_norm(w: NamedWeights, x: jax.Array, groups: int, eps: float) -> jax.Array:
    """[b, h, w, c], normed over the pixels and each group of neighbouring channels.

    Moments are computed per channel and grouped afterwards, so that the large array keeps its layout.
    """
    channels = x.shape[-1]
    scale, shift = (w.get(name, channels).astype(jnp.float32) for name in ("weight", "bias"))
    h = x.astype(jnp.float32)

    def over_groups(moments: jax.Array) -> jax.Array:  # [b, c] -> [b, c], equal within a group
        each = moments.reshape(-1, groups, channels // groups)
        return jnp.broadcast_to(each.mean(-1, keepdims=True), each.shape).reshape(moments.shape)

    mean, square = over_groups(h.mean((1, 2))), over_groups((h * h).mean((1, 2)))
    scale = scale * lax.rsqrt(jnp.maximum(square - mean * mean, 0) + eps)
    shift = shift - mean * scale
    return (h * scale[:, None, None] + shift[:, None, None]).astype(x.dtype)


def resnet(
    w: NamedWeights, x: jax.Array, out: int, groups: int, eps: float, time: jax.Array | None = None
) -> jax.Array:
    """Two convolutions with a residual; `time` [b, t] is the embedded time step, None in a VAE."""
    h = conv(w["conv1"], jax.nn.silu(group_norm(w["norm1"], x, groups, eps)), out)
    if time is not None:
        h = h + linear(w["time_emb_proj"], jax.nn.silu(time), out)[:, None, None]
    h = conv(w["conv2"], jax.nn.silu(group_norm(w["norm2"], h, groups, eps)), out)
    return h + (x if x.shape[-1] == out else conv(w["conv_shortcut"], x, out, size=1))


def upsample(w: NamedWeights, x: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Upsample to [b, *size, c] by repeating pixels, then convolve; a size is twice that of `x`, or one less.

    The nine pixels that a pixel of the result is made of are only four of `x`. Which four, and with which weights,
    depends on whether its row and its column are even: so there are four convolutions of `x` with 2 x 2 weights, less
    than half the work. See `by_parity` for the weights.
    """
    channels = x.shape[-1]
    kernels = w["conv"].get("weight", 2, 2, 2, 2, channels, channels)
    bias = w["conv"].get("bias", channels)
    if size != (2 * x.shape[1], 2 * x.shape[2]):  # at the border the repeated pixel is missing
        x = x.repeat(2, axis=1).repeat(2, axis=2)[:, : size[0], : size[1]]
        return _convolve(x, undo_by_parity(kernels).astype(x.dtype), ((1, 1), (1, 1))) + bias
    rows = []
    for row in (0, 1):
        around = (1 - row, row)
        even, odd = (_convolve(x, kernels[row, column], (around, (1 - column, column))) for column in (0, 1))
        # XLA makes less of stacking columns than of filling gaps with zeros.
        zero = jnp.zeros((), x.dtype)
        even, odd = (
            lax.pad(each, zero, ((0, 0, 0), (0, 0, 0), (first, 1 - first, 1), (0, 0, 0)))
            for first, each in enumerate((even, odd))
        )
        rows.append(even + odd)
    return jnp.stack(rows, 2).reshape(x.shape[0], *size, channels) + bias


def sinusoids(positions: jax.Array, size: int, flip: bool = True, shift: float = 0) -> jax.Array:
    """[...] -> [..., size] float32: cosines then sines (sines first without `flip`) of falling frequencies."""
    half = size // 2
    frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(half, dtype=jnp.float32) / (half - shift))
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    parts = (jnp.cos(angles), jnp.sin(angles))
    return jnp.concatenate(parts if flip else parts[::-1], axis=-1)
