"""Norms and activations: what a layer computes of each token without a matrix."""

import jax
import jax.numpy as jnp

from apps.llm.engine.model.layers import GATE_SLOPE, Activation, Norm


def norm(of: Norm, x: jax.Array, weight: jax.Array | None = None, bias: jax.Array | None = None) -> jax.Array:
    """RMSNorm over the last axis, or LayerNorm (which has a bias), in float32.

    Gemma multiplies by the weight, or 1 + weight, before rounding; the other RMSNorms multiply after.
    """
    wide, share = x.astype(jnp.float32), 1 / x.shape[-1]  # TPUs fuse a multiplication, but not a division
    if of.kind == "layer":
        wide = wide - jnp.sum(wide, axis=-1, keepdims=True) * share
    wide = wide * jax.lax.rsqrt(jnp.sum(wide * wide, axis=-1, keepdims=True) * share + of.eps)
    if weight is None:
        return wide.astype(x.dtype)
    if not of.wide_weight:
        return wide.astype(x.dtype) * weight
    wide = wide * weight + (wide if of.plus_one else 0.0)
    return (wide if bias is None else wide + bias).astype(x.dtype)


def gated(of: Activation, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Gate and up projections of one shape -> what goes down. gpt-oss has limits and an activation of its own."""
    limit = of.limit
    if limit is None:
        return activation(of, gate) * up
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return _silu(gate * GATE_SLOPE) * (1 / GATE_SLOPE) * (up + 1)


def activation(of: Activation, x: jax.Array) -> jax.Array:
    """SiLU, or GELU by its tanh approximation."""
    return _silu(x) if of.name == "silu" else jax.nn.gelu(x, approximate=True)


def _silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x), computed with tanh: one transcendental and no division, a third faster on XLA:CPU."""
    return x * (0.5 + 0.5 * jnp.tanh(0.5 * x))
