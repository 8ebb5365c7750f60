"""Declares the decoder's parameters, each once. The only place with a checkpoint's tensor names.

Abstract shapes, shardings, random weights and loading all follow from it: see `params`.
"""

from dataclasses import dataclass

from apps.llm.engine.model.architecture import Architecture, Experts
from apps.llm.engine.model.heads import HeadLayout
from apps.llm.engine.model.param import Param
from apps.llm.engine.model.params import Params
from apps.llm.engine.model.quantization import whole_lanes
from apps.llm.engine.weights.expert_rows import ExpertRows
from apps.llm.engine.weights.source import Rows, Source

FEED_AND_ROUTER = {
    "mixtral": ("block_sparse_moe", "gate"),
    "gpt_oss": ("mlp", "router"),
    "gemma4": ("", "router.proj"),  # beside the layer's dense network, which is called mlp
}
"""By `Experts.names`: the module that has the experts, and its router; of others, Qwen's `mlp` and `gate`."""


def declare(arch: Architecture, heads: HeadLayout) -> Params:
    """All parameters of a model on a mesh, as a tree of Param."""
    return _Declaration(arch, heads).tree()


@dataclass(frozen=True)
class _Declaration:
    """The parameters of a model, part by part. Each method returns them by the key that the decoder uses."""

    arch: Architecture
    heads: HeadLayout

    def tree(self) -> Params:
        arch, hidden = self.arch, self.arch.hidden_size
        table = (arch.vocab_size, hidden)
        # A table used only for lookups, not in a product, gains nothing from int8.
        embed = Param(
            table, ("vocab", "embed"), _plain("model.embed_tokens.weight", *table), matrix=arch.tied_embeddings
        )
        tree: Params = {
            "embed": embed,
            "layers": [self.layer(i) for i in range(arch.num_layers)],
            **self.norm("final_norm", "model.norm"),
        }
        if arch.per_layer_width:
            tree |= self.per_layer_embeddings()
        if not arch.tied_embeddings:
            tree["lm_head"] = Param(table, ("vocab", "embed"), _plain("lm_head.weight", *table), matrix=True)
        if arch.head_bias:
            source = _plain("lm_head.bias", arch.vocab_size)
            tree["lm_head_bias"] = Param(table[:1], ("vocab",), source, constant=0.0, wide=True)
        return tree

    def layer(self, i: int) -> Params:
        """One layer, in the order in which it computes, but for the norms."""
        arch, prefix = self.arch, f"model.layers.{i}"
        params = self.norm("attention_norm", f"{prefix}.input_layernorm") | self.attention_matrices(i)
        if arch.has_experts(i):
            params |= self.experts(prefix)
        if arch.has_mlp(i):
            params |= self.feed_forward(f"{prefix}.mlp", arch.of_layer(i).intermediate_size)
        if arch.post_norms:
            params |= self.norm("post_attention_norm", f"{prefix}.post_attention_layernorm")
            params |= self.norm("mlp_norm", f"{prefix}.pre_feedforward_layernorm")
            params |= self.norm("post_mlp_norm", f"{prefix}.post_feedforward_layernorm")
        else:
            params |= self.norm("mlp_norm", f"{prefix}.post_attention_layernorm")  # Llama's name for the MLP's norm
        params |= self.attention_vectors(i)
        if arch.per_layer_width:
            params |= self.per_layer_input(prefix)
        if arch.layer_scalars:
            params["scalar"] = Param((1,), (None,), _plain(f"{prefix}.layer_scalar", 1), constant=1.0)
        return params

    def attention_matrices(self, i: int) -> Params:
        """q, k and v in one matrix, and the projection of the heads' outputs."""
        own, layout, hidden = self.arch.of_layer(i), self.heads.of_layer(self.arch, i), self.arch.hidden_size
        name = f"model.layers.{i}.self_attn"
        outputs = self.qkv_rows(i)
        inputs = layout.kv_heads * layout.group * own.head_dim
        qkv = _fused_qkv(own, name, "weight", layout, hidden)
        out = _plain(f"{name}.o_proj.weight", hidden, inputs)
        return {
            "qkv": Param((outputs, hidden), ("kv_heads", "embed"), qkv, matrix=True),
            "out": Param((hidden, inputs), ("embed", "kv_heads"), out, matrix=True),
        }

    def attention_vectors(self, i: int) -> Params:
        """What attention has besides: sinks, norms of queries and keys, biases."""
        arch, own, layout = self.arch, self.arch.of_layer(i), self.heads.of_layer(self.arch, i)
        name = f"model.layers.{i}.self_attn"
        params: Params = {}
        if arch.sinks:
            queries = layout.kv_heads * layout.group
            sinks = _plain(f"{name}.sinks", queries)
            params["sinks"] = Param((queries,), ("kv_heads",), sinks, constant=0.0, wide=True)
        if arch.qk_norm:
            params["q_norm"] = self.vector(f"{name}.q_norm.weight", own.head_dim)
        if arch.qk_norm and own.kv_projections:  # a layer that attends to another's keys has no norm of them
            params["k_norm"] = self.vector(f"{name}.k_norm.weight", own.head_dim)
        if arch.attention_bias:
            bias = _fused_qkv(own, name, "bias", layout)
            params["qkv_bias"] = Param((self.qkv_rows(i),), ("kv_heads",), bias, constant=0.0, wide=True)
        if arch.output_bias:
            params["out_bias"] = self.vector(f"{name}.o_proj.bias")
        return params

    def qkv_rows(self, i: int) -> int:
        """Outputs of a layer's `qkv`: each key/value head's queries, then its key and value as far as it has them."""
        own, layout = self.arch.of_layer(i), self.heads.of_layer(self.arch, i)
        return layout.kv_heads * (layout.group + own.kv_projections) * own.head_dim

    def feed_forward(self, feed: str, mlp: int) -> Params:
        """A dense network of width `mlp`: gate and up in one matrix, or up alone, then down."""
        arch, heads, hidden = self.arch, self.heads, self.arch.hidden_size
        if arch.gated_mlp:
            key, rows = "gate_up", 2 * mlp
            into = _gate_up(arch, feed, "weight", heads, mlp, hidden)
            bias = _gate_up(arch, feed, "bias", heads, mlp)
        else:
            key, rows = "up", mlp
            into = _plain(f"{feed}.up_proj.weight", mlp, hidden)
            bias = _plain(f"{feed}.up_proj.bias", mlp)
        down = _plain(f"{feed}.down_proj.weight", hidden, mlp)
        params = {
            key: Param((rows, hidden), ("mlp", "embed"), into, matrix=True),
            "down": Param((hidden, mlp), ("embed", "mlp"), down, matrix=True),
        }
        if arch.mlp_bias:
            params[f"{key}_bias"] = Param((rows,), ("mlp",), bias, constant=0.0, wide=True)
            params["down_bias"] = self.vector(f"{feed}.down_proj.bias")
        return params

    def experts(self, prefix: str) -> Params:
        """A layer's router and experts, and the network that all tokens share."""
        experts, hidden = self.arch.experts, self.arch.hidden_size
        assert experts is not None
        module, router = FEED_AND_ROUTER.get(experts.names, ("mlp", "gate"))
        feed = f"{prefix}.{module}" if module else prefix
        count = experts.count
        gate = _plain(f"{feed}.{router}.weight", count, hidden)
        params = {"router": Param((count, hidden), (None, "embed"), gate)}
        params |= self.expert_matrices(experts, feed)
        if experts.biases:
            params["router_bias"] = self.vector(f"{feed}.{router}.bias", count)
        if experts.beside:
            params["router_scale"] = self.vector(f"{prefix}.router.scale")
            params["expert_scales"] = self.vector(f"{prefix}.router.per_expert_scale", count)
            params |= self.norm("dense_norm", f"{prefix}.post_feedforward_layernorm_1")
            params |= self.norm("experts_norm", f"{prefix}.pre_feedforward_layernorm_2")
            params |= self.norm("post_experts_norm", f"{prefix}.post_feedforward_layernorm_2")
        if experts.shared_width:
            params |= self.feed_forward(f"{feed}.shared_expert", experts.shared_width)
            gate = _plain(f"{feed}.shared_expert_gate.weight", 1, hidden)
            params["shared_gate"] = Param((1, hidden), (None, "embed"), gate)
        return params

    def expert_matrices(self, experts: Experts, feed: str) -> Params:
        """All experts' matrices one below the other, in the mesh's order, with columns filled up to whole lanes."""
        hidden, count, width, parts = self.arch.hidden_size, experts.count, experts.width, self.heads.expert_parts
        source = ExpertRows(experts, feed, hidden, self.heads.devices, parts)
        up = (2 * count * width, whole_lanes(hidden))
        down = (count * parts * hidden, whole_lanes(width // parts))
        params = {
            "experts_in": Param(up, ("experts", "embed"), source.into("weight", hidden), matrix=True),
            "experts_out": Param(down, ("experts", None), source.down("weight", width), matrix=True),
        }
        if experts.biases:
            params["experts_in_bias"] = Param(up[:1], ("experts",), source.into("bias"), constant=0.0, wide=True)
            params["experts_out_bias"] = Param(down[:1], ("experts",), source.down("bias"), constant=0.0, wide=True)
        return params

    def per_layer_embeddings(self) -> Params:
        """Gemma 4's further table, of a vector for each layer, and the projection that adds to it."""
        hidden, extra = self.arch.hidden_size, self.arch.per_layer_width
        width = self.arch.num_layers * extra
        table, into = (self.arch.vocab_size, width), (width, hidden)
        rows = _plain("model.embed_tokens_per_layer.weight", *table)
        projection = _plain("model.per_layer_model_projection.weight", *into)
        return {
            "extra_embed": Param(table, ("vocab", None), rows),
            "extra_projection": Param(into, (None, "embed"), projection, matrix=True),
            "extra_projection_norm": self.vector("model.per_layer_projection_norm.weight", extra),
        }

    def per_layer_input(self, prefix: str) -> Params:
        """How a layer takes its part of those embeddings."""
        hidden, extra = self.arch.hidden_size, self.arch.per_layer_width
        into = _plain(f"{prefix}.per_layer_input_gate.weight", extra, hidden)
        back = _plain(f"{prefix}.per_layer_projection.weight", hidden, extra)
        return {
            "extra_in": Param((extra, hidden), (None, None), into, matrix=True),
            "extra_out": Param((hidden, extra), (None, None), back, matrix=True),
            **self.norm("extra_norm", f"{prefix}.post_per_layer_input_norm"),
        }

    def norm(self, key: str, name: str) -> Params:
        """One of the residual stream's norms: its weight under `key`, and a LayerNorm's bias."""
        bias = {f"{key}_bias": self.vector(f"{name}.bias")} if self.arch.norm == "layer" else {}
        return {key: self.vector(f"{name}.weight")} | bias

    def vector(self, name: str, size: int | None = None) -> Param:
        """A norm's weight or a bias, on every device; `size` is the hidden size unless given."""
        size = self.arch.hidden_size if size is None else size
        bias = name.endswith("bias")
        fill = 0.0 if self.arch.norm_plus_one or bias else 1.0
        # What `pointwise.norm` multiplies by before it rounds.
        wide = bias or self.arch.norm_plus_one or self.arch.wide_norm or self.arch.norm == "layer"
        return Param((size,), (None,), _plain(name, size), constant=fill, wide=wide)


def _plain(name: str, *shape: int) -> Source:
    """A whole tensor, in file order."""
    return (Rows(name, shape, 0, shape[0]),)


def _gate_up(arch: Architecture, feed: str, kind: str, heads: HeadLayout, *shape: int) -> Source:
    """The two projections into the MLP as one matrix: each device's gate rows, then its up rows."""
    share, (mlp, *inputs) = shape[0] // heads.devices, shape
    names, height = (f"{feed}.gate_proj.{kind}", f"{feed}.up_proj.{kind}"), mlp
    if arch.fused:
        names, height = (f"{feed}.gate_up_proj.{kind}",) * 2, 2 * mlp
    starts = (0, mlp if arch.fused else 0)
    return tuple(
        Rows(name, (height, *inputs), start + device * share, start + (device + 1) * share)
        for device in range(heads.devices)
        for name, start in zip(names, starts)
    )


def _fused_qkv(arch: Architecture, attention: str, kind: str, heads: HeadLayout, *inputs: int) -> Source:
    """q, k and v (those the layer has) fused into one matrix: each key/value head after the query heads that use it."""
    dim, queries, keys = arch.head_dim, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    heights, starts = (queries, keys, keys), (0, 0, 0)
    names = [f"{attention}.{name}_proj.{kind}" for name in "qkv"]
    if arch.fused:
        heights, starts = (queries + 2 * keys,) * 3, (0, queries, queries + keys)
        names = [f"{attention}.qkv_proj.{kind}"] * 3

    def part(which: int, head: int, count: int) -> Rows:
        first = starts[which] + head * dim
        return Rows(names[which], (heights[which], *inputs), first, first + count * dim)

    parts = []
    for kv_head in range(heads.kv_heads):
        source = kv_head // heads.repeat
        parts.append(part(0, kv_head * heads.group, heads.group))
        parts += [part(which, source, 1) for which in range(1, 1 + arch.kv_projections)]
    return tuple(parts)
