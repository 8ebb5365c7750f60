"""The feed-forward network that a layer's value describes."""

from apps.llm.engine.model.feed_forward.beside import BesideExperts
from apps.llm.engine.model.feed_forward.experts import ExpertNetworks
from apps.llm.engine.model.feed_forward.interface import LayerNetwork
from apps.llm.engine.model.feed_forward.mlp import Network
from apps.llm.engine.model.layers import Experts, LayerSpec, Mlp, MlpBesideExperts
from apps.llm.engine.model.split import Split


def network_of(spec: LayerSpec, hidden_size: int, split: Split) -> LayerNetwork:
    match spec.feed_forward:
        case Mlp() as mlp:
            return Network(mlp, hidden_size, split)
        case Experts() as experts:
            return ExpertNetworks(experts, hidden_size, split)
        case MlpBesideExperts() as both:
            return BesideExperts(both, spec.norm, hidden_size, split)
