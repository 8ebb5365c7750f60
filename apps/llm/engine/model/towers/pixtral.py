"""Pixtral's vision tower with Mistral 3's projector. Source: PixtralVisionModel and Mistral3Model in transformers."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, stream_norm, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.rotation import rotate
from apps.llm.engine.model.towers.blocks import Patches, attention, linear, multiplied, numbers, traced_once
from apps.llm.engine.model.towers.spec import PixtralVision

NAME, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
NORM = Norm(1e-5)


@dataclass(frozen=True)
class PixtralTower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: PixtralVision
    devices: int
    dtype: Any = jnp.float32

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec, kernel = self.spec, (self.spec.width, self.spec.channels, self.spec.patch, self.spec.patch)
        merged, width = spec.width * spec.patches_a_token, spec.width
        return {
            "patch": Param(kernel, (None,) * 4, tensor(f"{NAME}.patch_conv.weight", *kernel)),
            **stream_norm(NORM, "first_norm", f"{NAME}.ln_pre", width),
            "blocks": [self._block(f"{NAME}.transformer.layers.{number}") for number in range(spec.layers)],
            **stream_norm(NORM, "projector_norm", f"{PROJECTOR}.norm", width),
            **linear("merging", f"{PROJECTOR}.patch_merger.merging_layer", width, merged, None, None, bias=False),
            **linear("projector_in", f"{PROJECTOR}.linear_1", spec.out, width, "mlp", None, spec.bias),
            **linear("projector_out", f"{PROJECTOR}.linear_2", spec.out, spec.out, None, "mlp", spec.bias),
        }

    def _block(self, name: str) -> Params:
        width, mlp = self.spec.width, self.spec.mlp_width
        split = "kv_heads" if self.spec.heads % self.devices == 0 else None
        params = stream_norm(NORM, "norm1", f"{name}.attention_norm", width)
        params |= stream_norm(NORM, "norm2", f"{name}.ffn_norm", width)
        for which in "qkv":
            params |= linear(which, f"{name}.attention.{which}_proj", width, width, split, None, bias=False)
        params |= linear("out", f"{name}.attention.o_proj", width, width, None, split, bias=False)
        for which in ("gate", "up"):
            params |= linear(which, f"{name}.feed_forward.{which}_proj", mlp, width, "mlp", None, bias=False)
        return params | linear("down", f"{name}.feed_forward.down_proj", width, mlp, None, "mlp", bias=False)

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, out]`: those of padding are of no use."""
        spec = self.spec
        x = multiplied(numbers(patches, spec, self.dtype), {"patch": params["patch"].reshape(spec.width, -1)}, "patch")
        x = norm(NORM, x, params["first_norm"])
        angle = self._angles(patches)
        rotary = jnp.cos(angle), jnp.sin(angle)

        @traced_once
        def block(x: jax.Array, own: Params) -> jax.Array:
            y = norm(NORM, x, own["norm1"])
            q, k, v = (multiplied(y, own, each).reshape(len(x), spec.heads, -1) for each in "qkv")
            y = attention(rotate(q, *rotary), rotate(k, *rotary), v, patches.image)
            x = x + multiplied(y, own, "out")
            y = norm(NORM, x, own["norm2"])
            return x + multiplied(self._activated(multiplied(y, own, "gate")) * multiplied(y, own, "up"), own, "down")

        for own in params["blocks"]:
            x = block(x, own)
        return self._projected(params, norm(Norm(spec.eps), x, params["projector_norm"]))

    def _projected(self, params: Params, x: jax.Array) -> jax.Array:
        # The merging layer takes a square's patches channel by channel.
        merged = x.reshape(-1, self.spec.patches_a_token, self.spec.width).swapaxes(1, 2)
        x = multiplied(merged.reshape(len(merged), -1), params, "merging")
        return multiplied(
            jax.nn.gelu(multiplied(x, params, "projector_in"), approximate=False), params, "projector_out"
        )

    def _activated(self, x: jax.Array) -> jax.Array:
        return jax.nn.silu(x) if self.spec.activation == "silu" else jax.nn.gelu(x, approximate=False)

    def _angles(self, patches: Patches) -> jax.Array:
        """Of the rotary embedding: a head's pairs turn with the row and the column in turns: `[N, head_dim]`."""
        head_dim = self.spec.width // self.spec.heads
        frequencies = np.array([self.spec.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)], np.float32)
        row, column = (place[:, None].astype(jnp.float32) for place in (patches.row, patches.column))
        return jnp.concatenate([row * frequencies[::2], column * frequencies[1::2]] * 2, axis=1)
