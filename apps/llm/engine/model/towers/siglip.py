"""SigLIP's vision tower with Gemma 3's projector. Source: SiglipVisionModel and Gemma3Model in transformers."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from apps.llm.engine.model.layers import Norm
from apps.llm.engine.model.param import Param, Params, bias, stream_norm, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.towers.blocks import Patches, attention, linear, multiplied, numbers, traced_once
from apps.llm.engine.model.towers.spec import SiglipVision

NAME, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"


@dataclass(frozen=True)
class SiglipTower:
    """Declares the tower's parameters and applies it. Heads and widths are split over devices where they divide."""

    spec: SiglipVision
    devices: int
    dtype: Any = jnp.float32

    @property
    def _norm(self) -> Norm:
        return Norm(self.spec.eps, kind="layer")

    @property
    def _pooled_norm(self) -> Norm:
        return Norm(self.spec.eps, plus_one=True)

    def declare(self) -> Params:
        """All parameters, as a tree of Param."""
        spec, width = self.spec, self.spec.width
        kernel, table, into = (width, spec.channels, spec.patch, spec.patch), (spec.side**2, width), (width, spec.out)
        return {
            "patch": Param(kernel, (None,) * 4, tensor(f"{NAME}.embeddings.patch_embedding.weight", *kernel)),
            "patch_bias": bias(f"{NAME}.embeddings.patch_embedding.bias", width),
            "positions": Param(table, (None, None), tensor(f"{NAME}.embeddings.position_embedding.weight", *table)),
            "blocks": [self._block(f"{NAME}.encoder.layers.{number}") for number in range(spec.layers)],
            **stream_norm(self._norm, "last_norm", f"{NAME}.post_layernorm", width),
            **stream_norm(self._pooled_norm, "pooled_norm", f"{PROJECTOR}.mm_soft_emb_norm", width),
            "projection": Param(into, (None, None), tensor(f"{PROJECTOR}.mm_input_projection_weight", *into)),
        }

    def _block(self, name: str) -> Params:
        width, mlp = self.spec.width, self.spec.mlp_width
        split = "kv_heads" if self.spec.heads % self.devices == 0 else None
        params = stream_norm(self._norm, "norm1", f"{name}.layer_norm1", width)
        params |= stream_norm(self._norm, "norm2", f"{name}.layer_norm2", width)
        for which in "qkv":
            params |= linear(which, f"{name}.self_attn.{which}_proj", width, width, split, None)
        params |= linear("out", f"{name}.self_attn.out_proj", width, width, None, split)
        params |= linear("up", f"{name}.mlp.fc1", mlp, width, "mlp", None)
        return params | linear("down", f"{name}.mlp.fc2", width, mlp, None, "mlp")

    def apply(self, params: Params, patches: Patches) -> jax.Array:
        """The images' tokens, `[N / patches a token, out]`: those of padding are of no use."""
        spec = self.spec
        own = {"patch": params["patch"].reshape(spec.width, -1), "patch_bias": params["patch_bias"]}
        x = multiplied(numbers(patches, spec, self.dtype), own, "patch")
        x = x + params["positions"][patches.row * spec.side + patches.column]

        @traced_once
        def block(x: jax.Array, own: Params) -> jax.Array:
            y = norm(self._norm, x, own["norm1"], own["norm1_bias"])
            q, k, v = (multiplied(y, own, each).reshape(len(x), spec.heads, -1) for each in "qkv")
            x = x + multiplied(attention(q, k, v, patches.image), own, "out")
            y = norm(self._norm, x, own["norm2"], own["norm2_bias"])
            return x + multiplied(jax.nn.gelu(multiplied(y, own, "up"), approximate=True), own, "down")

        for own in params["blocks"]:
            x = block(x, own)
        x = norm(self._norm, x, params["last_norm"], params["last_norm_bias"])
        x = x.reshape(-1, spec.patches_a_token, spec.width).mean(axis=1)
        x = norm(self._pooled_norm, x, params["pooled_norm"])
        return jnp.dot(x, params["projection"], preferred_element_type=jnp.float32).astype(self.dtype)
