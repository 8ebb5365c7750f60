"""Softmax attention over the paged KV cache."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from apps.arrays.row_ranges import Rows, Source
from apps.llm.engine.adapters.low_rank import AdaptedProduct, plus
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionBackend, AttentionSpec, KVScales, LayerCache
from apps.llm.engine.model.layers import Attention
from apps.llm.engine.model.mixers.interface import Capacity, Mixed, StateForm
from apps.llm.engine.model.param import Param, Params, bias, norm_weight, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.rotation import angles, rotate
from apps.llm.engine.model.split import HeadLayout, Split
from apps.llm.engine.model.step_context import StepContext


class Positions(NamedTuple):
    """What layers of one kind share in a step."""

    plan: Any  # the attention implementation's
    rotary: tuple[jax.Array, jax.Array] | None  # cosines and sines of the rotary embedding


@dataclass(frozen=True)
class AttentionMixer:
    """The `LayerMixer`. Its state is by pages, and laid out by the attention implementation."""

    spec: Attention
    hidden_size: int
    split: Split

    @property
    def heads(self) -> HeadLayout:
        return self.split.heads(self.spec.num_heads, self.spec.num_kv_heads)

    def of_kernel(self, page_size: int) -> AttentionSpec:
        """What the attention implementation needs to know."""
        spec, heads = self.spec, self.heads
        return AttentionSpec(
            kv_heads=heads.kv_heads,
            group=heads.group,
            head_dim=spec.head_dim,
            page_size=page_size,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window,
            both_ways=spec.both_ways,
        )

    # -- parameters ---------------------------------------------------------------------------------------------

    def declare(self, layer: str) -> Params:
        """q, k and v in one matrix, the projection of the heads' outputs, and what attention has besides."""
        spec, heads, name = self.spec, self.heads, f"{layer}.self_attn"
        # Each key/value head's queries, then its key and value as far as it has them.
        outputs = heads.kv_heads * (heads.group + spec.kv_projections) * spec.head_dim
        queries = heads.kv_heads * heads.group
        inputs, hidden = queries * spec.head_dim, self.hidden_size
        out = tensor(f"{name}.o_proj.weight", hidden, inputs)
        qkv = self._fused(name, "weight", hidden)
        params: Params = {
            "qkv": Param((outputs, hidden), ("kv_heads", "embed"), qkv, matrix=True),
            "out": Param((hidden, inputs), ("embed", "kv_heads"), out, matrix=True),
        }
        if spec.gated:
            gates = self._gates(name, hidden)
            params["gate"] = Param((inputs, hidden), ("kv_heads", "embed"), gates, matrix=True)
        if spec.sinks:
            sinks = tensor(f"{name}.sinks", queries)
            params["sinks"] = Param((queries,), ("kv_heads",), sinks, constant=0.0, wide=True)
        normed = "qk" if spec.owns_cache else "q"
        if spec.qk_norm is not None and spec.qk_norm.weighted:
            for which in normed:
                weight = norm_weight(spec.qk_norm, f"{name}.{which}_norm.weight", spec.head_dim)
                params[f"{which}_norm"] = weight
        if spec.bias:
            source = self._fused(name, "bias")
            params["qkv_bias"] = Param((outputs,), ("kv_heads",), source, constant=0.0, wide=True)
        if spec.output_bias:
            params["out_bias"] = bias(f"{name}.o_proj.bias", hidden)
        return params

    def _fused(self, name: str, kind: str, *inputs: int) -> Source:
        """q, k and v (those the layer has) fused into one matrix: each key/value head after the queries that use it."""
        spec, heads, dim = self.spec, self.heads, self.spec.head_dim
        queries, keys = spec.num_heads * dim, spec.num_kv_heads * dim
        heights, starts = (queries, keys, keys), (0, 0, 0)
        names = [f"{name}.{each}_proj.{kind}" for each in "qkv"]
        if spec.fused:
            heights, starts = (queries + 2 * keys,) * 3, (0, queries, queries + keys)
            names = [f"{name}.qkv_proj.{kind}"] * 3

        def part(which: int, head: int, count: int) -> Rows:
            first = starts[which] + head * dim
            return Rows(names[which], (heights[which], *inputs), first, first + count * dim)

        parts = []
        for kv_head in range(heads.kv_heads):
            source, first = kv_head // heads.repeat, kv_head * heads.group
            if spec.gate_in_q:
                own = range(first, first + heads.group)
                parts += [Rows(names[0], (2 * queries, *inputs), 2 * dim * q, (2 * q + 1) * dim) for q in own]
            else:
                parts.append(part(0, first, heads.group))
            parts += [part(which, source, 1) for which in range(1, 1 + spec.kv_projections)]
        return tuple(parts)

    def _gates(self, name: str, hidden: int) -> Source:
        """A gate for each number of the query heads' outputs, head by head."""
        heads, dim = self.spec.num_heads, self.spec.head_dim
        if not self.spec.gate_in_q:
            return tensor(f"{name}.gate_proj.weight", heads * dim, hidden)
        shape = 2 * heads * dim, hidden
        return tuple(Rows(f"{name}.q_proj.weight", shape, (2 * q + 1) * dim, (2 * q + 2) * dim) for q in range(heads))

    def adapted(self) -> dict[str, AdaptedProduct]:
        heads, kv, dim = self.heads, self.spec.kv_projections, self.spec.head_dim
        qkv = AdaptedProduct(1 + kv, self.hidden_size, heads.group + kv, heads.kv_heads * dim, split="out")
        queries = heads.kv_heads * heads.group * dim
        products = {"qkv": qkv, "out": AdaptedProduct(1, queries, 1, self.hidden_size, split="in")}
        if self.spec.gated:
            products["gate"] = AdaptedProduct(1, self.hidden_size, 1, queries, split="out")
        return products

    # -- state --------------------------------------------------------------------------------------------------

    def state(self, attention: AttentionBackend, room: Capacity) -> StateForm | None:
        if not self.spec.owns_cache:
            return None
        arrays = attention.cache(self.of_kernel(room.page_size), room.pages, room.dtype)
        return StateForm(arrays, attention.partition(), held_by="pages")

    def scales(self) -> KVScales | None:
        if not self.spec.owns_cache:
            return None
        form: Any = jax.ShapeDtypeStruct((self.heads.kv_heads, self.spec.head_dim), jnp.float32)
        return KVScales(form, form)

    def calibrated(self, observed: tuple[jax.Array, jax.Array] | None) -> KVScales | None:
        """Scales that cover the largest keys and values `[T, kv_heads, head_dim]`, with a margin of a tenth."""
        if observed is None:
            return None
        keys, values = observed
        return KVScales(_channel_scale(keys, self.spec.rope is not None), _channel_scale(values, False))

    # -- steps --------------------------------------------------------------------------------------------------

    def shared(self, step: StepContext) -> Positions:
        spec, size = self.of_kernel(step.machine.page_size), step.machine.page_size
        rope, rotary = self.spec.rope, None
        if rope is not None:
            frequencies, axes = rope.inverse_frequencies(spec.head_dim) * 2, rope.axes(spec.head_dim)
            turning = axes and axes * 2
            rotary = step.once(
                (rope, spec.head_dim), lambda: angles(step.batch, size, frequencies, rope.scale, turning)
            )
        return Positions(step.once(spec, lambda: step.machine.attention.plan(step.batch, spec)), rotary)

    def apply(
        self,
        x: jax.Array,
        layer: Params,
        state: LayerCache,
        shared: Positions,
        scales: KVScales | None,
        step: StepContext,
    ) -> Mixed:
        """Attention; `observed` are the keys and values `[T, kv_heads, head_dim]`, if it has them."""
        own, spec = self.spec, self.of_kernel(step.machine.page_size)
        qkv = step.product(x, layer["qkv"], layer.get("qkv_bias"))
        qkv = qkv.reshape(len(x), spec.kv_heads, -1, spec.head_dim)
        qkv = plus(qkv, x, step.adapted(layer, "qkv"), 2).astype(x.dtype)
        # Query heads and their key head rotate by the same angles. The last is that of the values, or of both.
        qk, v = qkv[:, :, : spec.group + 1], qkv[:, :, -1] if own.owns_cache else None
        if own.value_norm is not None and v is not None:
            v = norm(own.value_norm, v)
        if own.qk_norm is not None:
            qk = norm(own.qk_norm, qk, self._qk_weights(layer) if own.qk_norm.weighted else None)
        if shared.rotary is not None:
            qk = rotate(qk, *shared.rotary)
        q, k = qk[:, :, : spec.group], qk[:, :, -1] if own.owns_cache else None
        sinks = layer["sinks"].reshape(-1, spec.group) if own.sinks else None
        impl, mesh = step.machine.attention, step.machine.mesh
        y, state = attend(impl, QKV(q, k, v, sinks), state, shared.plan, step.batch, spec, mesh, scales)
        y = y.reshape(len(y), -1)
        if own.gated:
            gate = plus(step.product(x, layer["gate"])[:, None], x, step.adapted(layer, "gate"), 1)[:, 0]
            y = (y * jax.nn.sigmoid(gate)).astype(x.dtype)
        y = step.row_parallel(y, layer["out"], layer.get("out_bias"), step.adapted(layer, "out"))
        return Mixed(y, state, None if k is None or v is None else (k, v))

    def _qk_weights(self, layer: Params) -> jax.Array:
        """Weights of the norms of a group's queries and, where it has one, its key: `[group (+ 1), head_dim]`."""
        weights = jnp.broadcast_to(layer["q_norm"], (self.heads.group, self.spec.head_dim))
        return jnp.concatenate([weights, layer["k_norm"][None]]) if self.spec.owns_cache else weights


def _channel_scale(x: jax.Array, rotated: bool) -> jax.Array:
    """`[T, kv_heads, head_dim]` -> `[kv_heads, head_dim]`: int8 scales that cover the largest value seen."""
    largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=0)
    if rotated:
        # Rotary embedding rotates pairs of channels into each other, so both take the larger scale.
        pair = jnp.maximum(*jnp.split(largest, 2, axis=-1))
        largest = jnp.concatenate([pair, pair], axis=-1)
    return jnp.maximum(largest, 1e-6) * 1.1 / 127
