"""The decoder: pure functions from parameters, a batch and the KV cache to logits, for every supported family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from apps.llm.engine.adapters.low_rank import Owned, delta, owned
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionSpec, Implementation, KVScales, LayerCache
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.experts import mixture
from apps.llm.engine.model.experts.weights import ExpertWeights
from apps.llm.engine.model.params import HeadLayout, Params
from apps.llm.engine.model.pointwise import activation, gated, norm
from apps.llm.engine.model.quantization import Weight
from apps.llm.engine.model.rope import Rope, sinusoid_frequencies
from apps.llm.engine.model.rotation import angles, rotate
from apps.llm.engine.parallel.products import product, row_parallel, rows, splits_by_token, whole
from apps.llm.engine.step import Batch


class _Step(NamedTuple):
    """What all layers of a step share."""

    batch: Batch
    live: jax.Array  # [1] how many of the tokens are not padding: these come first
    by_token: bool  # whether tokens are split over the mesh between products
    own: Any  # which tokens have which adapter; None: no adapters


class _LayerInputs(NamedTuple):
    """A layer's further inputs, arrays as is everything in them."""

    plan: Any  # the attention implementation's, shared by layers of one spec
    scales: KVScales | None
    turn: tuple[jax.Array, jax.Array] | None  # cosines and sines of the rotary embedding
    extra: jax.Array | None  # [T, width] Gemma 4's further embeddings of this layer


@dataclass(frozen=True)
class Decoder:
    """The static description of a model on a mesh. Its methods are traced into the compiled steps."""

    arch: Architecture
    heads: HeadLayout
    page_size: int
    dtype: jnp.dtype
    impl: Implementation
    mesh: Mesh

    def attention_spec(self, layer: int) -> AttentionSpec:
        heads = self.heads.of_layer(self.arch, layer)
        return AttentionSpec(
            kv_heads=heads.kv_heads,
            group=heads.group,
            head_dim=self.arch.of_layer(layer).head_dim,
            page_size=self.page_size,
            scale=self.arch.attention_scale,
            softcap=self.arch.attention_softcap,
            window=self.arch.windows[layer],
        )

    def cache_specs(self) -> list[AttentionSpec | None]:
        """Of each layer's cache; None: it attends to another layer's."""
        layers = range(self.arch.num_layers)
        return [self.attention_spec(layer) if self.arch.owns_kv(layer) else None for layer in layers]

    def hidden(
        self,
        params: Params,
        batch: Batch,
        tokens: jax.Array,
        caches: list[LayerCache],
        kv_scales: list[KVScales | None] | None = None,
        observe: list[tuple[jax.Array, jax.Array] | None] | None = None,
    ) -> tuple[jax.Array, list[LayerCache]]:
        """The last layer's output at every token, `[T, hidden]`, and the caches with the step's keys and values.

        Args:
            tokens: `[T]`, with the decoding sequences' last samples filled in.
            observe: when given, each layer's keys and values `[T, kv_heads, head_dim]` are appended (calibration); None
                where it has none of its own.
        """
        arch = self.arch
        by_token = splits_by_token(len(tokens), self.mesh.size)
        x = self._embedded(params, batch, tokens, by_token)
        specs = [self.attention_spec(layer) for layer in range(arch.num_layers)]
        rotations = [(arch.rope_of(layer), spec.head_dim) for layer, spec in enumerate(specs)]
        turns: dict[tuple[Rope | None, int], Any] = {
            (rope, dim): rope and angles(batch, self.page_size, rope.inverse_frequencies(dim) * 2, rope.scale)
            for rope, dim in dict.fromkeys(rotations)
        }
        live = batch.q_starts[-1:]
        extras = [None] * arch.num_layers
        if arch.per_layer_width:
            extras = self._per_layer(params, tokens, x, live, by_token)
        adapters = params["layers"][0].get("adapters")
        own = None if adapters is None else owned(batch, adapters["qkv"].a.shape[1])
        step = _Step(batch, live, by_token, own)
        plans: dict[Any, Any] = {}
        caches = list(caches)

        # A jitted function, so that it is traced and lowered once, not for each layer. Otherwise tracing would take
        # most of the time of a start with a warm compilation cache.
        @partial(jax.jit, static_argnames="spec", inline=False)
        def run_layer(
            x: jax.Array, layer: Params, cache: LayerCache, given: _LayerInputs, spec: AttentionSpec
        ) -> tuple[jax.Array, LayerCache, tuple[jax.Array, jax.Array] | None]:
            return self._layer(x, layer, cache, given, spec, step)

        for i, (layer, spec, rotation) in enumerate(zip(params["layers"], specs, rotations)):
            if spec not in plans:
                plans[spec] = self.impl.plan(batch, spec)
            kv = arch.kv_layer(i)
            scales = kv_scales[kv] if kv_scales is not None else None
            given = _LayerInputs(plans[spec], scales, turns[rotation], extras[i])
            x, caches[kv], seen = run_layer(x, layer, caches[kv], given, spec)
            if observe is not None:
                observe.append(seen)
        return whole(x, self.mesh, by_token), caches

    def _embedded(self, params: Params, batch: Batch, tokens: jax.Array, by_token: bool) -> jax.Array:
        """The first layer's input, `[T, hidden]`."""
        arch = self.arch
        x = rows(params["embed"], tokens, self.dtype, self.mesh, by_token)
        if arch.scaled_embeddings:
            # The factor is rounded to the model's type first, as in the reference.
            x = x * jnp.asarray(arch.hidden_size**0.5, self.dtype)
        if arch.rope is None:
            cos, sin = angles(batch, self.page_size, sinusoid_frequencies(arch.hidden_size))
            x = x + jnp.concatenate([sin, cos], axis=-1).astype(self.dtype)
        return x

    def _layer(
        self, x: jax.Array, layer: Params, cache: LayerCache, given: _LayerInputs, spec: AttentionSpec, step: _Step
    ) -> tuple[jax.Array, LayerCache, tuple[jax.Array, jax.Array] | None]:
        """One layer: its output `[T, hidden]`, its cache, and the keys and values that it computed, if any."""
        arch, live, by_token = self.arch, step.live, step.by_token

        def adapted(name: str) -> Owned | None:
            return None if step.own is None or name not in layer["adapters"] else (layer["adapters"][name], step.own)

        y, cache, seen = self._attention(x, layer, cache, given, spec, step, adapted)
        if arch.post_norms:
            y = norm(arch, y, layer["post_attention_norm"], layer.get("post_attention_norm_bias"))
        x = x + y
        if "dense_norm" in layer:
            y = self._beside(whole(x, self.mesh, by_token), layer, live, by_token, adapted)
        else:
            y = whole(norm(arch, x, layer["mlp_norm"], layer.get("mlp_norm_bias")), self.mesh, by_token)
            y = self._feed_forward(y, layer, live, by_token, adapted)
        if arch.post_norms:
            y = norm(arch, y, layer["post_mlp_norm"], layer.get("post_mlp_norm_bias"))
        x = x + y
        if given.extra is not None:
            y = activation(arch, self._product(x, layer["extra_in"], live)) * given.extra
            y = self._product(y.astype(x.dtype), layer["extra_out"], live).astype(x.dtype)
            x = x + norm(arch, y, layer["extra_norm"])
        x = x * layer["scalar"] if arch.layer_scalars else x
        return x, cache, seen

    def _attention(
        self,
        x: jax.Array,
        layer: Params,
        cache: LayerCache,
        given: _LayerInputs,
        spec: AttentionSpec,
        step: _Step,
        adapted: Callable[[str], Owned | None],
    ) -> tuple[jax.Array, LayerCache, tuple[jax.Array, jax.Array] | None]:
        """What attention adds to x, `[T, hidden]`, its cache, and the keys and values that it computed, if any."""
        arch, by_token = self.arch, step.by_token
        y = whole(norm(arch, x, layer["attention_norm"], layer.get("attention_norm_bias")), self.mesh, by_token)
        qkv = self._product(y, layer["qkv"], step.live, layer.get("qkv_bias"))
        qkv = qkv.reshape(len(y), spec.kv_heads, -1, spec.head_dim)
        qkv = _plus(qkv, y, adapted("qkv"), 2).astype(y.dtype)
        # Query heads and their key head rotate by the same angles. The last is that of the values, or of both.
        qk, own_kv = qkv[:, :, : spec.group + 1], qkv.shape[2] > spec.group
        v = qkv[:, :, -1] if own_kv else None
        if arch.value_norm and v is not None:
            v = norm(arch, v)
        if arch.qk_norm:
            weights = jnp.broadcast_to(layer["q_norm"], (spec.group, spec.head_dim))
            weights = jnp.concatenate([weights, layer["k_norm"][None]]) if own_kv else weights
            qk = norm(arch, qk, weights)
        if given.turn is not None:
            qk = rotate(qk, *given.turn)
        q, k = qk[:, :, : spec.group], qk[:, :, -1] if own_kv else None
        sinks = layer["sinks"].reshape(-1, spec.group) if arch.sinks else None
        kv = QKV(q, k, v, sinks)
        y, cache = attend(self.impl, kv, cache, given.plan, step.batch, spec, self.mesh, given.scales)
        y = y.reshape(len(y), -1)
        y = row_parallel(y, layer["out"], layer.get("out_bias"), self.mesh, by_token, adapted("out"), step.live)
        return y, cache, None if k is None or v is None else (k, v)

    def _per_layer(
        self, params: Params, tokens: jax.Array, x: jax.Array, live: jax.Array, by_token: bool
    ) -> list[jax.Array]:
        """Gemma 4's further embeddings of each layer, `[T, width]`: from the tokens, and from their embeddings x."""
        layers, width = self.arch.num_layers, self.arch.per_layer_width
        own = rows(params["extra_embed"], tokens, self.dtype, self.mesh, by_token) * jnp.asarray(width**0.5, self.dtype)
        projected = self._product(x, params["extra_projection"], live) * self.arch.hidden_size**-0.5
        projected = norm(self.arch, projected.reshape(-1, layers, width), params["extra_projection_norm"])
        both = (projected.astype(self.dtype) + own.reshape(-1, layers, width)) * jnp.asarray(2**-0.5, self.dtype)
        return [both[:, layer] for layer in range(layers)]

    def logits(self, params: Params, hidden: jax.Array, live: jax.Array | None = None) -> jax.Array:
        """`[rows, hidden]` -> `[rows, vocab]` float32; `live` as `product` takes it."""
        head = params["embed"] if self.arch.tied_embeddings else params["lm_head"]
        logits = self._product(self.final(params, hidden), head, live, params.get("lm_head_bias"))
        if self.arch.final_softcap is not None:
            logits = self.arch.final_softcap * jnp.tanh(logits / self.arch.final_softcap)
        return logits

    def final(self, params: Params, hidden: jax.Array) -> jax.Array:
        """The final norm of the last layer's output, `[rows, hidden]`."""
        return norm(self.arch, hidden, params["final_norm"], params.get("final_norm_bias"))

    def _product(
        self, x: jax.Array, weight: Weight, live: jax.Array | None, bias: jax.Array | None = None
    ) -> jax.Array:
        return product(x, weight, self.mesh, bias, live)

    def _feed_forward(
        self, x: jax.Array, layer: Params, live: jax.Array, by_token: bool, adapted: Callable[[str], Owned | None]
    ) -> jax.Array:
        """`[T, hidden]` -> the same; of experts, padding (from row `live` on) takes none."""
        if "router" not in layer:
            return self._mlp(x, layer, live, by_token, adapted)
        logits = self._product(x, layer["router"], live, layer.get("router_bias"))
        y = self._experts(x, logits, layer, live, by_token)
        if "shared_gate" in layer:
            share = jax.nn.sigmoid(self._product(x, layer["shared_gate"], live))
            y = y + self._mlp(x, layer, live, by_token, adapted, share)
        return y

    def _beside(
        self, x: jax.Array, layer: Params, live: jax.Array, by_token: bool, adapted: Callable[[str], Owned | None]
    ) -> jax.Array:
        """Gemma 4's experts and feed-forward network beside them, each from x `[T, hidden]` by norms of its own."""
        dense = self._mlp(norm(self.arch, x, layer["mlp_norm"]), layer, live, by_token, adapted)
        logits = self._product(norm(self.arch, x, layer["router_scale"]), layer["router"], live)
        logits = logits * self.arch.hidden_size**-0.5
        routed = self._experts(norm(self.arch, x, layer["experts_norm"]), logits, layer, live, by_token)
        return norm(self.arch, dense, layer["dense_norm"]) + norm(self.arch, routed, layer["post_experts_norm"])

    def _experts(self, x: jax.Array, logits: jax.Array, layer: Params, live: jax.Array, by_token: bool) -> jax.Array:
        """The sum of each token's experts, which the router's logits `[T, experts]` pick."""
        of = self.arch.experts
        assert of is not None
        shares, picked = mixture.route(logits, of)
        if "expert_scales" in layer:
            shares = shares * layer["expert_scales"][picked]
        picked = jnp.where((jnp.arange(len(x)) < live)[:, None], picked, of.count)
        weights = ExpertWeights(
            layer["experts_in"], layer["experts_out"], layer.get("experts_in_bias"), layer.get("experts_out_bias")
        )
        return mixture.feed_forward(x, shares, picked, weights, partial(gated, self.arch), of, self.mesh, by_token)

    def _mlp(
        self,
        x: jax.Array,
        layer: Params,
        live: jax.Array,
        by_token: bool,
        adapted: Callable[[str], Owned | None],
        share: jax.Array | None = None,
    ) -> jax.Array:
        """One feed-forward network, times `share` `[T, 1]` where given."""
        if self.arch.gated_mlp:
            shares = self.heads.devices
            both = self._product(x, layer["gate_up"], live, layer.get("gate_up_bias"))
            both = both.reshape(len(x), shares, 2, -1)
            both = _plus(both, x, adapted("gate_up"), 2)
            gate, up = both[:, :, 0], both[:, :, 1]  # [T, devices, mlp / devices]
            y = gated(self.arch, gate, up)
        else:
            up = self._product(x, layer["up"], live, layer.get("up_bias"))[:, None]
            y = activation(self.arch, _plus(up, x, adapted("up"), 1))
        y = y.reshape(len(x), -1)
        y = (y if share is None else y * share).astype(x.dtype)
        return row_parallel(y, layer["down"], layer.get("down_bias"), self.mesh, by_token, adapted("down"), live)


def _plus(y: jax.Array, x: jax.Array, adapted: Owned | None, axis: int) -> jax.Array:
    """A product of x, plus what the adapters add; the outputs of `delta` are its axis `axis`."""
    if adapted is None:
        return y
    added = jnp.moveaxis(delta(x, adapted), 0, 1)  # [T, outputs, out]
    shape = (len(x), y.shape[axis], *y.shape[1:axis], *y.shape[axis + 1 :])
    return y + jnp.moveaxis(added.reshape(shape), 1, axis)
