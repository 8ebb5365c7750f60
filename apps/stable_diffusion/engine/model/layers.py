"""The layers that Stable Diffusion's networks share, as functions of weights; images are [batch, height, width, c].

Norms and softmaxes are computed in float32 whatever the weights' type, because their statistics need it.
"""

import jax
import jax.numpy as jnp
from jax import lax

from apps.stable_diffusion.engine.model.low_rank import plus
from apps.stable_diffusion.engine.model.weights import NamedWeights


def linear(w: NamedWeights, x: jax.Array, out: int, bias: bool = True) -> jax.Array:
    """[..., in] -> [..., out]."""
    y = plus(x @ w.get("weight", x.shape[-1], out), w.low_rank, x)
    return y + w.get("bias", out) if bias else y


def conv(
    w: NamedWeights, x: jax.Array, out: int, size: int = 3, stride: int = 1, padding: tuple[int, int] | None = None
) -> jax.Array:
    """[b, h, w, in] -> [b, h / stride, w / stride, out]; `padding` before and after, on both axes."""
    kernel = w.get("weight", size, size, x.shape[-1], out)
    around = padding or (size // 2, size // 2)
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (stride, stride), (around, around), dimension_numbers=numbers)
    if (pair := w.low_rank) is not None:
        y = y + pair.conv(x, y.shape, stride, around)
    return y + w.get("bias", out)


def layer_norm(w: NamedWeights, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """[..., c]. Both moments at once, because reading the array again for the second takes as long as the first."""
    scale, shift = (w.get(name, x.shape[-1]).astype(jnp.float32) for name in ("weight", "bias"))
    h = x.astype(jnp.float32)
    mean, square = h.mean(-1, keepdims=True), (h * h).mean(-1, keepdims=True)
    h = (h - mean) * lax.rsqrt(jnp.maximum(square - mean * mean, 0) + eps)
    return (h * scale + shift).astype(x.dtype)


def rms_norm(w: NamedWeights, x: jax.Array, eps: float) -> jax.Array:
    """[..., c]."""
    h = x.astype(jnp.float32)
    h = h * lax.rsqrt((h * h).mean(-1, keepdims=True) + eps)
    return h.astype(x.dtype) * w.get("weight", x.shape[-1])


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
    """Upsample to [b, *size, c] by repeating pixels, then convolve."""
    if size == (2 * x.shape[1], 2 * x.shape[2]):
        x = x.repeat(2, axis=1).repeat(2, axis=2)
    else:  # an odd size further up
        rows, columns = (jnp.arange(new) * old // new for new, old in zip(size, x.shape[1:3]))
        x = x[:, rows][:, :, columns]
    return conv(w["conv"], x, x.shape[-1])


def sinusoids(positions: jax.Array, size: int, flip: bool = True, shift: float = 0) -> jax.Array:
    """[...] -> [..., size] float32: cosines then sines (sines first without `flip`) of falling frequencies."""
    half = size // 2
    frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(half, dtype=jnp.float32) / (half - shift))
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    parts = (jnp.cos(angles), jnp.sin(angles))
    return jnp.concatenate(parts if flip else parts[::-1], axis=-1)
