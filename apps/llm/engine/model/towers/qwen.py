"""Qwen3.5's vision tower. Source: Qwen3_5VisionModel in transformers."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from apps.arrays.row_ranges import Rows
from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, bias, stream_norm, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.rotation import rotate
from apps.llm.engine.model.towers.spec import Tower

NAME = "model.visual"
QUERIES = 512
"""Patches whose scores against all others are in memory at a time."""


class Patches(NamedTuple):
    """Patches of several images, one image after another, then padding. Within one, those of a token are together."""

    pixels: jax.Array  # [N, channels * patch * patch] uint8
    row: jax.Array  # [N] int32, in its image's grid, as is `column`
    column: jax.Array
    rows: jax.Array  # [N] of its image, as are `columns`
    columns: jax.Array
    image: jax.Array  # [N] its image's number; -1: padding


@dataclass(frozen=True)
class QwenTower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: Tower
    devices: int
    dtype: Any = jnp.float32

    @cached_property
    def _norm(self) -> Norm:
        return Norm(self.spec.eps, kind="layer")

    @property
    def _split(self) -> str | None:
        """The axis of what is split by head."""
        return "kv_heads" if self.spec.heads % self.devices == 0 else None

    # -- parameters ---------------------------------------------------------------------------------------------

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec = self.spec
        kernel, table = (spec.width, spec.channels, spec.frames, spec.patch, spec.patch), (spec.grid**2, spec.width)
        merged = spec.width * spec.patches_a_token
        return {
            "patch": Param(kernel, (None,) * 5, tensor(f"{NAME}.patch_embed.proj.weight", *kernel)),
            "patch_bias": bias(f"{NAME}.patch_embed.proj.bias", spec.width),
            "positions": Param(table, (None, None), tensor(f"{NAME}.pos_embed.weight", *table)),
            "blocks": [self._block(f"{NAME}.blocks.{number}") for number in range(spec.layers)],
            **stream_norm(self._norm, "merger_norm", f"{NAME}.merger.norm", spec.width),
            **_linear("merger_in", f"{NAME}.merger.linear_fc1", merged, merged, "mlp", None),
            **_linear("merger_out", f"{NAME}.merger.linear_fc2", spec.out, merged, None, "mlp"),
        }

    def _block(self, name: str) -> Params:
        width, mlp, split = self.spec.width, self.spec.mlp_width, self._split
        params = stream_norm(self._norm, "norm1", f"{name}.norm1", width)
        params |= stream_norm(self._norm, "norm2", f"{name}.norm2", width)
        for number, which in enumerate("qkv"):  # one after another in the file; each is split by head
            whole, first = f"{name}.attn.qkv", number * width
            rows = Rows(f"{whole}.weight", (3 * width, width), first, first + width)
            params[which] = Param((width, width), (split, None), (rows,))
            numbers = (Rows(f"{whole}.bias", (3 * width,), first, first + width),)
            params[f"{which}_bias"] = Param((width,), (split,), numbers, constant=0.0, wide=True)
        params |= _linear("out", f"{name}.attn.proj", width, width, None, split)
        params |= _linear("up", f"{name}.mlp.linear_fc1", mlp, width, "mlp", None)
        params |= _linear("down", f"{name}.mlp.linear_fc2", width, mlp, None, "mlp")
        return params

    # -- the tower ----------------------------------------------------------------------------------------------

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, out]`: those of padding are of no use."""
        x = self._embedded(params, patches)
        angle = self._angles(patches)
        rotary = jnp.cos(angle), jnp.sin(angle)

        @jax.jit  # traced once, not for each block
        def block(x: jax.Array, own: Params) -> jax.Array:
            x = x + self._attention(self._normed(x, own, "norm1"), own, rotary, patches.image)
            y = jax.nn.gelu(self._linear(self._normed(x, own, "norm2"), own, "up"), approximate=True)
            return x + self._linear(y, own, "down")

        for own in params["blocks"]:
            x = block(x, own)
        x = self._normed(x, params, "merger_norm").reshape(-1, self.spec.width * self.spec.patches_a_token)
        return self._linear(jax.nn.gelu(self._linear(x, params, "merger_in"), approximate=False), params, "merger_out")

    def _embedded(self, params: Params, patches: Patches) -> jax.Array:
        spec, pixels = self.spec, self.spec.pixels
        mean, std = np.array(pixels.mean, np.float32)[:, None], np.array(pixels.std, np.float32)[:, None]
        values = patches.pixels.reshape(-1, spec.channels, spec.patch**2).astype(jnp.float32)
        # Transformers multiplies by the factor in float64. This quotient is the same number, its product is not.
        x = ((values / np.float32(1 / pixels.factor) - mean) / std).astype(self.dtype).reshape(-1, spec.bytes_a_patch)
        kernel = params["patch"].astype(jnp.float32).sum(axis=2)  # an image's frames are all the same
        x = _product(x, kernel.reshape(spec.width, -1).astype(self.dtype)) + params["patch_bias"]
        return (x.astype(self.dtype) + self._positions(params["positions"], patches)).astype(self.dtype)

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

    def _angles(self, patches: Patches) -> jax.Array:
        """Of the rotary embedding: half of a head's pairs turn with the row, half with the column: `[N, head_dim]`."""
        pairs = self.spec.width // self.spec.heads // 4
        frequencies = np.array([self.spec.theta ** (-i / pairs) for i in range(pairs)], np.float32)
        places = [place[:, None].astype(jnp.float32) * frequencies for place in (patches.row, patches.column)]
        return jnp.concatenate(places * 2, axis=1)

    def _attention(self, x: jax.Array, own: Params, rotary: tuple[jax.Array, jax.Array], image: jax.Array) -> jax.Array:
        """Of each patch to all patches of its image, `[N, width]`."""
        heads, head_dim = self.spec.heads, self.spec.width // self.spec.heads
        q, k, v = (self._linear(x, own, each).reshape(-1, heads, head_dim) for each in "qkv")
        q, k = rotate(q, *rotary), rotate(k, *rotary)

        def attended(queries: tuple[jax.Array, jax.Array]) -> jax.Array:
            some, of = queries
            scores = jnp.einsum("qhd,khd->hqk", some, k, preferred_element_type=jnp.float32) / math.sqrt(head_dim)
            scores = jnp.where(of[:, None] == image, scores, -jnp.inf)
            weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            return jnp.einsum("hqk,khd->qhd", weights, v, preferred_element_type=jnp.float32).astype(x.dtype)

        if len(x) <= QUERIES or len(x) % QUERIES:
            y = attended((q, image))
        else:
            y = jax.lax.map(attended, (q.reshape(-1, QUERIES, heads, head_dim), image.reshape(-1, QUERIES)))
        return self._linear(y.reshape(x.shape), own, "out")

    def _normed(self, x: jax.Array, own: Params, name: str) -> jax.Array:
        return norm(self._norm, x, own[name], own[f"{name}_bias"])

    def _linear(self, x: jax.Array, own: Params, name: str) -> jax.Array:
        return (_product(x, own[name]) + own[f"{name}_bias"]).astype(self.dtype)


def _linear(key: str, name: str, out: int, into: int, split_out: str | None, split_in: str | None) -> Params:
    """A weight `[out, into]` and its bias. Where an axis does not divide, the mesh has it whole."""
    numbers = Param((out,), (split_out,), tensor(f"{name}.bias", out), constant=0.0, wide=True)
    return {key: Param((out, into), (split_out, split_in), tensor(f"{name}.weight", out, into)), f"{key}_bias": numbers}


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`[N, in]` times `[out, in]` -> `[N, out]` float32. XLA adds what the split of the weight needs."""
    return jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
