"""The decoder: pure functions from parameters, a batch and the KV cache to logits, for every supported family."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.llm.engine import attention
from apps.llm.engine.architecture import Architecture
from apps.llm.engine.attention import AttentionSpec, Implementation, KVScales, LayerCache
from apps.llm.engine.params import HeadLayout, Params
from apps.llm.engine.quantization import linear, rows
from apps.llm.engine.step import Batch


@dataclass(frozen=True)
class Decoder:
    """Everything static about a model on a mesh; its methods are traced into the compiled steps."""

    arch: Architecture
    heads: HeadLayout
    page_size: int
    dtype: jnp.dtype
    impl: Implementation
    mesh: Mesh

    def attention_spec(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            kv_heads=self.heads.kv_heads,
            group=self.heads.group,
            head_dim=self.arch.head_dim,
            page_size=self.page_size,
            scale=self.arch.attention_scale,
            softcap=self.arch.attention_softcap,
            window=self.arch.windows[layer],
        )

    def hidden(
        self,
        params: Params,
        batch: Batch,
        tokens: jax.Array,
        caches: list[LayerCache],
        kv_scales: list[KVScales] | None = None,
        observe: list[tuple[jax.Array, jax.Array]] | None = None,
    ) -> tuple[jax.Array, list[LayerCache]]:
        """The last layer's output at every token, `[T, hidden]`, and the caches with the step's keys and values.

        Args:
            tokens: `[T]`, with the decoding sequences' last samples filled in.
            observe: when given, each layer's keys and values `[T, kv_heads, head_dim]` are appended (calibration).
        """
        arch = self.arch
        x = rows(params["embed"], tokens, self.dtype)
        if arch.scaled_embeddings:
            # Rounded to the model's type first, as the reference does.
            x = x * jnp.asarray(arch.hidden_size**0.5, self.dtype)
        position = attention.slots(batch, self.page_size)[1]
        cos, sin = _rotation(position, arch)
        plans: dict[Any, Any] = {}
        caches = list(caches)
        for i, layer in enumerate(params["layers"]):
            spec = self.attention_spec(i)
            if spec not in plans:
                plans[spec] = self.impl.plan(batch, spec)
            y = self._norm(x, layer["attention_norm"])
            qkv = linear(y, layer["qkv"], layer.get("qkv_bias"))  # [T, kv_heads, group + 2, head_dim]
            q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
            if arch.qk_norm:
                q, k = self._norm(q, layer["q_norm"]), self._norm(k, layer["k_norm"])
            q, k = _rotate(q, cos[:, None], sin[:, None]), _rotate(k, cos, sin)
            if observe is not None:
                observe.append((k, v))
            scales = kv_scales[i] if kv_scales is not None else None
            y, caches[i] = attention.attend(self.impl, q, k, v, caches[i], plans[spec], batch, spec, self.mesh, scales)
            y = linear(y, layer["out"], layer.get("out_bias"), in_axes=3)
            if arch.post_norms:
                y = self._norm(y, layer["post_attention_norm"])
            x = x + y
            y = self._feed_forward(self._norm(x, layer["mlp_norm"]), layer)
            if arch.post_norms:
                y = self._norm(y, layer["post_mlp_norm"])
            x = x + y
        return x, caches

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        """`[rows, hidden]` -> `[rows, vocab]` float32."""
        head = params["embed"] if self.arch.tied_embeddings else params["lm_head"]
        x = self._norm(hidden, params["final_norm"])
        values = head.values.astype(x.dtype) if hasattr(head, "scale") else head
        logits = jax.lax.dot_general(x, values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        if hasattr(head, "scale"):
            logits = logits * head.scale
        if self.arch.final_softcap is not None:
            logits = self.arch.final_softcap * jnp.tanh(logits / self.arch.final_softcap)
        return logits

    def _norm(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """RMSNorm over the last axis, in float32; Gemma multiplies by 1 + weight before rounding, the others after."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.arch.norm_eps)
        if self.arch.norm_plus_one:
            return (wide * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
        return wide.astype(x.dtype) * weight

    def _feed_forward(self, x: jax.Array, layer: Params) -> jax.Array:
        gate_up = linear(x, layer["gate_up"], layer.get("gate_up_bias"))  # [T, 2, mlp]
        gate, up = gate_up[:, 0], gate_up[:, 1]
        if self.arch.activation == "silu":
            gate = jax.nn.silu(gate)
        else:
            gate = jax.nn.gelu(gate, approximate=True)
        return linear(gate * up, layer["down"], layer.get("down_bias"))


def _rotation(position: jax.Array, arch: Architecture) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary angles, each `[T, 1, head_dim / 2]` float32."""
    frequencies = jnp.asarray(np.asarray(arch.rope.inverse_frequencies(arch.head_dim), np.float32))
    angle = position[:, None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding on `[T, ..., head_dim]`: channel i turns with channel i + head_dim / 2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
