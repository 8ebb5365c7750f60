"""The mixer that a layer's value describes."""

from apps.llm.engine.model.layers import Attention, DeltaNet, Mixer
from apps.llm.engine.model.mixers.attention import AttentionMixer
from apps.llm.engine.model.mixers.delta_net import DeltaNetMixer
from apps.llm.engine.model.mixers.interface import LayerMixer
from apps.llm.engine.model.split import Split


def mixer_of(spec: Mixer, hidden_size: int, split: Split) -> LayerMixer:
    match spec:
        case Attention():
            return AttentionMixer(spec, hidden_size, split)
        case DeltaNet():
            return DeltaNetMixer(spec, hidden_size, split)
