"""Qwen3.5's vision tower, and Qwen3-VL's. Sources: Qwen3_5VisionModel and Qwen3VLVisionModel in transformers."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, bias, stream_norm, tensor
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
from apps.llm.engine.model.towers.spec import QwenVision

NAME = "model.visual"
NORM = Norm(1e-6, kind="layer")


@dataclass(frozen=True)
class QwenTower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: QwenVision
    devices: int
    dtype: Any = jnp.float32

    # -- parameters ---------------------------------------------------------------------------------------------

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec = self.spec
        kernel, table = (spec.width, spec.channels, spec.frames, spec.patch, spec.patch), (spec.grid**2, spec.width)
        return {
            "patch": Param(kernel, (None,) * 5, tensor(f"{NAME}.patch_embed.proj.weight", *kernel)),
            "patch_bias": bias(f"{NAME}.patch_embed.proj.bias", spec.width),
            "positions": Param(table, (None, None), tensor(f"{NAME}.pos_embed.weight", *table)),
            "blocks": [self._block(f"{NAME}.blocks.{number}") for number in range(spec.layers)],
            "merger": self._merger(f"{NAME}.merger", spec.width),
            "mergers": [
                self._merger(f"{NAME}.deepstack_merger_list.{number}", spec.width * spec.patches_a_token)
                for number in range(len(spec.seen_after))
            ],
        }

    def _merger(self, name: str, normed: int) -> Params:
        """What makes tokens of patches.

        Args:
            normed: numbers that are normed together.
        """
        merged = self.spec.width * self.spec.patches_a_token
        return {
            **stream_norm(NORM, "norm", f"{name}.norm", normed),
            **linear("in", f"{name}.linear_fc1", merged, merged, "mlp", None),
            **linear("out", f"{name}.linear_fc2", self.spec.out, merged, None, "mlp"),
        }

    def _block(self, name: str) -> Params:
        width, mlp = self.spec.width, self.spec.mlp_width
        split = "kv_heads" if self.spec.heads % self.devices == 0 else None
        params = stream_norm(NORM, "norm1", f"{name}.norm1", width) | stream_norm(NORM, "norm2", f"{name}.norm2", width)
        params |= split_in_file(f"{name}.attn.qkv", width, split)
        params |= linear("out", f"{name}.attn.proj", width, width, None, split)
        params |= linear("up", f"{name}.mlp.linear_fc1", mlp, width, "mlp", None)
        params |= linear("down", f"{name}.mlp.linear_fc2", width, mlp, None, "mlp")
        return params

    # -- the tower ----------------------------------------------------------------------------------------------

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, features]`: those of padding are of no use."""
        x = self._embedded(params, patches)
        angle = halves(patches, self.spec)
        rotary = jnp.cos(angle), jnp.sin(angle)

        @traced_once
        def block(x: jax.Array, own: Params) -> jax.Array:
            x = x + self._attention(_normed(x, own, "norm1"), own, rotary, patches.image)
            return x + multiplied(
                jax.nn.gelu(multiplied(_normed(x, own, "norm2"), own, "up"), approximate=True), own, "down"
            )

        between = dict(zip(self.spec.seen_after, params["mergers"], strict=True))
        seen = []
        for number, own in enumerate(params["blocks"]):
            x = block(x, own)
            if number in between:
                seen.append(self._merged(x, between[number], normed_last=True))
        return jnp.concatenate([self._merged(x, params["merger"]), *seen], axis=-1)

    def _merged(self, x: jax.Array, own: Params, normed_last: bool = False) -> jax.Array:
        """Patches `[N, width]` -> `[N / patches a token, out]`."""
        together = -1, self.spec.width * self.spec.patches_a_token
        x = _normed(x.reshape(together), own, "norm") if normed_last else _normed(x, own, "norm").reshape(together)
        return multiplied(jax.nn.gelu(multiplied(x, own, "in"), approximate=False), own, "out")

    def _embedded(self, params: Params, patches: Patches) -> jax.Array:
        x = numbers(patches, self.spec, self.dtype)
        kernel = params["patch"].astype(jnp.float32).sum(axis=2)  # an image's frames are all the same
        own = {"patch": kernel.reshape(self.spec.width, -1).astype(self.dtype), "patch_bias": params["patch_bias"]}
        return multiplied(x, own, "patch") + self._positions(params["positions"], patches)

    def _positions(self, table: jax.Array, patches: Patches) -> jax.Array:
        """The learned positions, between those of the nearest four places of their grid: `[N, width]`."""
        side, total = self.spec.grid, jnp.zeros((len(patches.row), self.spec.width), jnp.float32)
        taps = []
        for place, size in ((patches.row, patches.rows), (patches.column, patches.columns)):
            source = place.astype(jnp.float32) * (side - 1) / jnp.maximum(size - 1, 1).astype(jnp.float32)
            low = jnp.floor(source)
            past = source - low
            low = low.astype(jnp.int32)
            taps.append(((jnp.clip(low, 0, side - 1), 1 - past), (jnp.clip(low + 1, 0, side - 1), past)))
        for row, by_row in taps[0]:
            for column, by_column in taps[1]:
                total += table[row * side + column].astype(jnp.float32) * (by_row * by_column)[:, None]
        return total.astype(self.dtype)

    def _attention(self, x: jax.Array, own: Params, rotary: tuple[jax.Array, jax.Array], image: jax.Array) -> jax.Array:
        q, k, v = (multiplied(x, own, each).reshape(len(x), self.spec.heads, -1) for each in "qkv")
        return multiplied(attention(rotate(q, *rotary), rotate(k, *rotary), v, image), own, "out")


def _normed(x: jax.Array, own: Params, name: str) -> jax.Array:
    return norm(NORM, x, own[name], own[f"{name}_bias"])
