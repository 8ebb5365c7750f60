"""Declares the decoder's parameters, each once, with where it lies in a checkpoint.

Abstract shapes, shardings, random weights and loading all follow from it: see `params`.
"""

from dataclasses import dataclass

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.feed_forward.choice import network_of
from apps.llm.engine.model.layers import LayerSpec
from apps.llm.engine.model.mixers.choice import mixer_of
from apps.llm.engine.model.param import Param, Params, norm_weight, stream_norm, tensor
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.towers.choice import tower_for


def declare(arch: Architecture, split: Split) -> Params:
    """All parameters of a model on a mesh, as a tree of Param."""
    return _Declaration(arch, split).tree()


@dataclass(frozen=True)
class _Declaration:
    """The parameters of a model, part by part. Each method returns them by the key that the decoder uses."""

    arch: Architecture
    split: Split

    def tree(self) -> Params:
        arch, hidden = self.arch, self.arch.hidden_size
        table = (arch.vocab_size, hidden)
        # A table used only for lookups, not in a product, gains nothing from int8.
        embed = Param(
            table, ("vocab", "embed"), tensor("model.embed_tokens.weight", *table), matrix=arch.tied_embeddings
        )
        tree: Params = {
            "embed": embed,
            "layers": [self.layer(spec, f"model.layers.{number}") for number, spec in enumerate(arch.layers)],
            **stream_norm(arch.norm, "final_norm", "model.norm", hidden),
        }
        if arch.input_width:
            tree |= self.layer_embeddings()
        if not arch.tied_embeddings:
            tree["lm_head"] = Param(table, ("vocab", "embed"), tensor("lm_head.weight", *table), matrix=True)
        if arch.tower is not None:
            tree["tower"] = tower_for(arch.tower, self.split.devices).declare()
        if arch.head_bias:
            source = tensor("lm_head.bias", arch.vocab_size)
            tree["lm_head_bias"] = Param(table[:1], ("vocab",), source, constant=0.0, wide=True)
        return tree

    def layer(self, spec: LayerSpec, name: str) -> Params:
        hidden = self.arch.hidden_size
        params = mixer_of(spec.mixer, hidden, self.split).declare(name)
        params |= network_of(spec, hidden, self.split).declare(name) | self.norms(spec, name)
        if spec.inputs is not None:
            params |= self.layer_input(spec, spec.inputs.width, name)
        if spec.scalar:
            params["scalar"] = Param((1,), (None,), tensor(f"{name}.layer_scalar", 1), constant=1.0)
        return params

    def norms(self, spec: LayerSpec, layer: str) -> Params:
        # As Llama calls them: where there are others after each part, theirs is the name of the second.
        post = spec.post_norm
        names = {
            "attention_norm": (spec.norm, "input_layernorm"),
            "mlp_norm": (spec.norm, "pre_feedforward_layernorm" if post else "post_attention_layernorm"),
        }
        if post is not None:
            names["post_attention_norm"] = post, "post_attention_layernorm"
            names["post_mlp_norm"] = post, "post_feedforward_layernorm"
        params: Params = {}
        for key, (norm, name) in names.items():
            params |= stream_norm(norm, key, f"{layer}.{name}", self.arch.hidden_size)
        return params

    def layer_embeddings(self) -> Params:
        """Gemma 4's further table, of a vector for each layer, and the projection that adds to it."""
        arch, hidden, extra = self.arch, self.arch.hidden_size, self.arch.input_width
        width = arch.num_layers * extra
        table, into = (arch.vocab_size, width), (width, hidden)
        rows = tensor("model.embed_tokens_per_layer.weight", *table)
        projection = tensor("model.per_layer_model_projection.weight", *into)
        return {
            "extra_embed": Param(table, ("vocab", None), rows),
            "extra_projection": Param(into, (None, "embed"), projection, matrix=True),
            "extra_projection_norm": norm_weight(arch.norm, "model.per_layer_projection_norm.weight", extra),
        }

    def layer_input(self, spec: LayerSpec, extra: int, layer: str) -> Params:
        """How a layer takes its part of those embeddings."""
        hidden = self.arch.hidden_size
        into = tensor(f"{layer}.per_layer_input_gate.weight", extra, hidden)
        back = tensor(f"{layer}.per_layer_projection.weight", hidden, extra)
        return {
            "extra_in": Param((extra, hidden), (None, None), into, matrix=True),
            "extra_out": Param((hidden, extra), (None, None), back, matrix=True),
            **stream_norm(spec.norm, "extra_norm", f"{layer}.post_per_layer_input_norm", hidden),
        }
