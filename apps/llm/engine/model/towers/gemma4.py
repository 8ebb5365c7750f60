"""Gemma 4's vision tower and projection. Source: Gemma4VisionModel and Gemma4MultimodalEmbedder in transformers."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.arrays.row_ranges import Rows
from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, bias, norm_weight, stream_norm, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.rotation import rotate
from apps.llm.engine.model.towers.blocks import Patches, attention, linear, multiplied, numbers, traced_once
from apps.llm.engine.model.towers.spec import Gemma4Vision

NAME = "model.vision_tower"
NORMS = {
    "norm1": "input_layernorm",
    "post_norm1": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "post_norm2": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Gemma4Tower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: Gemma4Vision
    devices: int
    dtype: Any = jnp.float32

    @property
    def _norm(self) -> Norm:
        return Norm(self.spec.eps, wide=True)

    # -- parameters ---------------------------------------------------------------------------------------------

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec, width = self.spec, self.spec.width
        into, table = (width, spec.bytes_a_patch), (2, spec.positions, width)
        positions = tensor(f"{NAME}.patch_embedder.position_embedding_table", *table)
        params: Params = {
            "patch": Param(into, (None, None), tensor(f"{NAME}.patch_embedder.input_proj.weight", *into)),
            "positions": Param(table, (None,) * 3, positions),
            "blocks": [self._block(f"{NAME}.encoder.layers.{number}") for number in range(spec.layers)],
        }
        if spec.standardized:
            scale = tensor(f"{NAME}.std_scale", width)
            params["std_bias"] = bias(f"{NAME}.std_bias", width)
            params["std_scale"] = Param((width,), (None,), scale, constant=1.0, wide=True)
        projection = "model.embed_vision.embedding_projection"
        return params | linear("projection", projection, spec.out, width, None, None, bias=False)

    def _block(self, name: str) -> Params:
        width, mlp, head_dim = self.spec.width, self.spec.mlp_width, self.spec.width // self.spec.heads
        split = "kv_heads" if self.spec.heads % self.devices == 0 else None
        params: Params = {}
        for key, of in NORMS.items():
            params |= stream_norm(self._norm, key, f"{name}.{of}", width)
        for which in "qkv":
            params |= self._linear(which, f"{name}.self_attn.{which}_proj", width, width, split, None)
        for which in "qk":
            params[f"{which}_norm"] = norm_weight(self._norm, f"{name}.self_attn.{which}_norm.weight", head_dim)
        params |= self._linear("out", f"{name}.self_attn.o_proj", width, width, None, split)
        for which in ("gate", "up"):
            params |= self._linear(which, f"{name}.mlp.{which}_proj", mlp, width, "mlp", None)
        return params | self._linear("down", f"{name}.mlp.down_proj", width, mlp, None, "mlp")

    def _linear(self, key: str, name: str, out: int, into: int, split_out: str | None, split_in: str | None) -> Params:
        """A weight, and the bounds of what goes into its product and comes out, in this order."""
        params = linear(key, f"{name}.linear", out, into, split_out, split_in, bias=False)
        for end, none in (("min", -math.inf), ("max", math.inf)) if self.spec.clipped else ():
            source = tuple(Rows(f"{name}.{of}_{end}", (1,), 0, 1) for of in ("input", "output"))
            params[f"{key}_{end}"] = Param((2,), (None,), source, constant=none, wide=True, bound=True)
        return params

    # -- the tower ----------------------------------------------------------------------------------------------

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, out]`: those of padding are of no use."""
        spec = self.spec
        x = self._embedded(params, patches)
        across, down = self._angles(patches.column), self._angles(patches.row)

        def turned(y: jax.Array) -> jax.Array:
            # The first half of a head turns with the column, the second with the row.
            first, second = jnp.split(y, 2, axis=-1)
            return jnp.concatenate([rotate(first, *across), rotate(second, *down)], axis=-1)

        @traced_once
        def block(x: jax.Array, own: Params) -> jax.Array:
            y = norm(self._norm, x, own["norm1"])
            q, k, v = (_clipped_product(y, own, each).reshape(len(x), spec.heads, -1) for each in "qkv")
            q, k = norm(self._norm, q, own["q_norm"]), norm(self._norm, k, own["k_norm"])
            y = attention(turned(q), turned(k), norm(self._norm, v), patches.image, scale=1.0)
            x = x + norm(self._norm, _clipped_product(y, own, "out"), own["post_norm1"])
            y = norm(self._norm, x, own["norm2"])
            y = jax.nn.gelu(_clipped_product(y, own, "gate"), approximate=True) * _clipped_product(y, own, "up")
            return x + norm(self._norm, _clipped_product(y, own, "down"), own["post_norm2"])

        for own in params["blocks"]:
            x = block(x, own)
        return multiplied(norm(self._norm, self._pooled(params, x)), params, "projection")

    def _embedded(self, params: Params, patches: Patches) -> jax.Array:
        spec = self.spec
        values = (2 * (numbers(patches, spec, jnp.float32) - 0.5)).astype(self.dtype)
        # The weight takes a patch's pixels one after another, each with its channels.
        weight = params["patch"].reshape(spec.width, spec.patch, spec.patch, spec.channels).transpose(0, 3, 1, 2)
        across, down = params["positions"]
        x = multiplied(values, {"patch": weight.reshape(spec.width, -1)}, "patch")
        return x + (across[patches.column] + down[patches.row])

    def _pooled(self, params: Params, x: jax.Array) -> jax.Array:
        spec = self.spec
        squares = x.reshape(-1, spec.patches_a_token, spec.width).astype(jnp.float32)
        pooled = squares.mean(axis=1).astype(self.dtype).astype(jnp.float32) * spec.width**0.5
        if spec.standardized:
            pooled = (pooled - params["std_bias"]) * params["std_scale"]
        return pooled.astype(self.dtype)

    def _angles(self, place: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines for half of a head: `[N, head_dim / 2]`."""
        half = self.spec.width // self.spec.heads // 2
        frequencies = np.array([self.spec.theta ** (-2 * i / half) for i in range(half // 2)], np.float32)
        angle = place[:, None].astype(jnp.float32) * np.tile(frequencies, 2)
        return jnp.cos(angle), jnp.sin(angle)


def _clipped_product(x: jax.Array, own: Params, key: str) -> jax.Array:
    """`multiplied` within the weight's bounds, if it has any."""
    if f"{key}_min" not in own:
        return multiplied(x, own, key)
    least, most = own[f"{key}_min"].astype(x.dtype), own[f"{key}_max"].astype(x.dtype)
    return jnp.clip(multiplied(jnp.clip(x, least[0], most[0]), own, key), least[1], most[1])
