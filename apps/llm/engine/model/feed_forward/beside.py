"""Gemma 4's experts and the network beside them."""

from dataclasses import dataclass

import jax

from apps.llm.engine.adapters.low_rank import AdaptedProduct
from apps.llm.engine.model.feed_forward.experts import ExpertNetworks
from apps.llm.engine.model.feed_forward.mlp import Network
from apps.llm.engine.model.layers import MlpBesideExperts, Norm
from apps.llm.engine.model.param import Params, norm_weight, stream_norm
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import StepContext


@dataclass(frozen=True)
class BesideExperts:
    """The `LayerNetwork` of `MlpBesideExperts`: the router, the experts and the network have norms of their own."""

    spec: MlpBesideExperts
    norm: Norm
    hidden_size: int
    split: Split

    @property
    def mlp(self) -> Network:
        return Network(self.spec.mlp, self.hidden_size, self.split)

    @property
    def experts(self) -> ExpertNetworks:
        return ExpertNetworks(self.spec.experts, self.hidden_size, self.split)

    def declare(self, layer: str) -> Params:
        of, hidden = self.norm, self.hidden_size
        return {
            **self.mlp.declare(layer),
            **self.experts.declare(layer),
            "router_scale": norm_weight(of, f"{layer}.router.scale", hidden),
            "expert_scales": norm_weight(of, f"{layer}.router.per_expert_scale", self.spec.experts.count),
            **stream_norm(of, "dense_norm", f"{layer}.post_feedforward_layernorm_1", hidden),
            **stream_norm(of, "experts_norm", f"{layer}.pre_feedforward_layernorm_2", hidden),
            **stream_norm(of, "post_experts_norm", f"{layer}.post_feedforward_layernorm_2", hidden),
        }

    def adapted(self) -> dict[str, AdaptedProduct]:
        return self.mlp.adapted()

    def apply(self, x: jax.Array, layer: Params, step: StepContext) -> jax.Array:
        of = self.norm
        dense = self.mlp.apply(norm(of, x, layer["mlp_norm"]), layer, step)
        logits = step.product(norm(of, x, layer["router_scale"]), layer["router"]) * self.hidden_size**-0.5
        routed = self.experts.picked(norm(of, x, layer["experts_norm"]), logits, layer, step)
        return norm(of, dense, layer["dense_norm"]) + norm(of, routed, layer["post_experts_norm"])
