"""Qwen2.5-VL's vision tower: most of its blocks attend within windows.

Source: Qwen2_5_VisionTransformerPretrainedModel in transformers, which puts a window's patches together for that. Here
a mask tells windows apart, and patches stay where they are.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, stream_norm, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.rotation import rotate
from apps.llm.engine.model.towers.blocks import (
    Patches,
    attention,
    halves,
    linear,
    multiplied,
    numbers,
    split_in_file,
    traced_once,
)
from apps.llm.engine.model.towers.spec import WindowedVision

NAME = "model.visual"
NORM = Norm(1e-6)
MOST_WINDOWS = 1 << 10
"""Along a side of an image, and images in a call: more than there can be."""


@dataclass(frozen=True)
class WindowedTower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: WindowedVision
    devices: int
    dtype: Any = jnp.float32

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec = self.spec
        kernel = spec.width, spec.channels, spec.frames, spec.patch, spec.patch
        merged = spec.width * spec.patches_a_token
        return {
            "patch": Param(kernel, (None,) * 5, tensor(f"{NAME}.patch_embed.proj.weight", *kernel)),
            "blocks": [self._block(f"{NAME}.blocks.{number}") for number in range(spec.layers)],
            **stream_norm(NORM, "merger_norm", f"{NAME}.merger.ln_q", spec.width),
            **linear("merger_in", f"{NAME}.merger.mlp.0", merged, merged, "mlp", None),
            **linear("merger_out", f"{NAME}.merger.mlp.2", spec.out, merged, None, "mlp"),
        }

    def _block(self, name: str) -> Params:
        width, mlp = self.spec.width, self.spec.mlp_width
        split = "kv_heads" if self.spec.heads % self.devices == 0 else None
        params = stream_norm(NORM, "norm1", f"{name}.norm1", width) | stream_norm(NORM, "norm2", f"{name}.norm2", width)
        params |= split_in_file(f"{name}.attn.qkv", width, split)
        params |= linear("out", f"{name}.attn.proj", width, width, None, split)
        for which in ("gate", "up"):
            params |= linear(which, f"{name}.mlp.{which}_proj", mlp, width, "mlp", None)
        return params | linear("down", f"{name}.mlp.down_proj", width, mlp, None, "mlp")

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, out]`: those of padding are of no use."""
        spec = self.spec
        kernel = params["patch"].astype(jnp.float32).sum(axis=2)  # an image's frames are all the same
        own = {"patch": kernel.reshape(spec.width, -1).astype(self.dtype)}
        x = multiplied(numbers(patches, spec, self.dtype), own, "patch")
        angle = halves(patches, spec)
        rotary = jnp.cos(angle), jnp.sin(angle)

        @traced_once
        def block(x: jax.Array, own: Params, among: jax.Array) -> jax.Array:
            y = norm(NORM, x, own["norm1"])
            q, k, v = (multiplied(y, own, each).reshape(len(x), spec.heads, -1) for each in "qkv")
            x = x + multiplied(attention(rotate(q, *rotary), rotate(k, *rotary), v, among), own, "out")
            y = norm(NORM, x, own["norm2"])
            return x + multiplied(jax.nn.silu(multiplied(y, own, "gate")) * multiplied(y, own, "up"), own, "down")

        windows = self._windows(patches)
        for number, own in enumerate(params["blocks"]):
            x = block(x, own, patches.image if number in spec.whole else windows)
        x = norm(NORM, x, params["merger_norm"]).reshape(-1, spec.width * spec.patches_a_token)
        return multiplied(jax.nn.gelu(multiplied(x, params, "merger_in"), approximate=False), params, "merger_out")

    def _windows(self, patches: Patches) -> jax.Array:
        """The number of each patch's window, over all images; -1: padding."""
        row, column = patches.row // self.spec.window, patches.column // self.spec.window
        number = (patches.image * MOST_WINDOWS + row) * MOST_WINDOWS + column
        return jnp.where(patches.image < 0, -1, number)
