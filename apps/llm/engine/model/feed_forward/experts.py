"""Experts: a router picks a few feed-forward networks for each token. `model.experts` computes them."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from apps.arrays.quantization import whole_lanes
from apps.llm.engine.adapters.low_rank import AdaptedProduct
from apps.llm.engine.model.experts import mixture
from apps.llm.engine.model.experts.weights import ExpertWeights
from apps.llm.engine.model.feed_forward.mlp import Network
from apps.llm.engine.model.layers import Experts
from apps.llm.engine.model.param import Param, Params, bias, tensor
from apps.llm.engine.model.pointwise import gated
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import StepContext
from apps.llm.engine.weights.expert_rows import ExpertRows

MODULE_AND_ROUTER = {
    "mixtral": ("block_sparse_moe", "gate"),
    "gpt_oss": ("mlp", "router"),
    "gemma4": ("", "router.proj"),  # beside the layer's dense network, which is called mlp
}
"""By `Experts.names`: the module that has the experts, and its router; of others, Qwen's `mlp` and `gate`."""


@dataclass(frozen=True)
class ExpertNetworks:
    """The `LayerNetwork` of `Experts`."""

    spec: Experts
    hidden_size: int
    split: Split

    def declare(self, layer: str) -> Params:
        """Router and experts, and the network that all tokens share."""
        spec, hidden = self.spec, self.hidden_size
        module, router = MODULE_AND_ROUTER.get(spec.names, ("mlp", "gate"))
        feed = f"{layer}.{module}" if module else layer
        gate = tensor(f"{feed}.{router}.weight", spec.count, hidden)
        params = {"router": Param((spec.count, hidden), (None, "embed"), gate)} | self._matrices(feed)
        if spec.biases:
            params["router_bias"] = bias(f"{feed}.{router}.bias", spec.count)
        if self.shared is not None:
            params |= self.shared.declare(feed, "shared_expert")
            gate = tensor(f"{feed}.shared_expert_gate.weight", 1, hidden)
            params["shared_gate"] = Param((1, hidden), (None, "embed"), gate)
        return params

    def _matrices(self, feed: str) -> Params:
        """All experts' matrices one below the other, in the mesh's order, with columns filled up to whole lanes."""
        hidden, count, width, parts = self.hidden_size, self.spec.count, self.spec.width, self.split.expert_parts
        source = ExpertRows(self.spec, feed, hidden, self.split.devices, parts)
        up = (2 * count * width, whole_lanes(hidden))
        down = (count * parts * hidden, whole_lanes(width // parts))
        params = {
            "experts_in": Param(up, ("experts", "embed"), source.into("weight", hidden), matrix=True),
            "experts_out": Param(down, ("experts", None), source.down("weight", width), matrix=True),
        }
        if self.spec.biases:
            params["experts_in_bias"] = Param(up[:1], ("experts",), source.into("bias"), constant=0.0, wide=True)
            params["experts_out_bias"] = Param(down[:1], ("experts",), source.down("bias"), constant=0.0, wide=True)
        return params

    @property
    def shared(self) -> Network | None:
        return None if self.spec.shared is None else Network(self.spec.shared, self.hidden_size, self.split)

    def adapted(self) -> dict[str, AdaptedProduct]:
        return {}

    def apply(self, x: jax.Array, layer: Params, step: StepContext) -> jax.Array:
        y = self.picked(x, step.product(x, layer["router"], layer.get("router_bias")), layer, step)
        if self.shared is not None:
            share = jax.nn.sigmoid(step.product(x, layer["shared_gate"]))
            y = y + self.shared.apply(x, layer, step, share)
        return y

    def picked(self, x: jax.Array, logits: jax.Array, layer: Params, step: StepContext) -> jax.Array:
        """The sum of each token's experts, which the router's logits `[T, experts]` pick."""
        spec = self.spec
        shares, picked = mixture.route(logits, spec)
        if "expert_scales" in layer:
            shares = shares * layer["expert_scales"][picked]
        picked = jnp.where((jnp.arange(len(x)) < step.num_tokens)[:, None], picked, spec.count)
        of_experts = partial(gated, spec.activation)
        return mixture.feed_forward(
            x, shares, picked, expert_weights(layer), of_experts, spec, step.machine.mesh, step.by_token
        )


def expert_weights(layer: Params) -> ExpertWeights:
    """Those of a layer's parameters that are its experts'."""
    return ExpertWeights(
        layer["experts_in"], layer["experts_out"], layer.get("experts_in_bias"), layer.get("experts_out_bias")
    )
