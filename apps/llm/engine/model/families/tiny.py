"""Tiny stand-ins for models: the same architecture options and split over devices, narrow enough for any CPU."""

import math
from dataclasses import dataclass, replace

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import (
    Activation,
    Attention,
    DeltaNet,
    Experts,
    FeedForward,
    LayerSpec,
    Mlp,
    MlpBesideExperts,
    Norm,
)
from apps.llm.engine.model.rope import Rope
from apps.llm.engine.model.towers.spec import QwenVision, Tower

HEAD_DIM = 16  # the minimum of the CPU attention kernels
HIDDEN = 64


def tiny(arch: Architecture, shards: int, layers: int = 2) -> Architecture:
    """A narrow version of the architecture that splits over `shards` devices the way the full one does.

    The number of query heads for each key/value head, and how often a key/value head is repeated over the devices, stay
    the same. So does the vocabulary, and with it the tokenizer.

    Args:
        layers: the most layers to keep.

    Raises:
        ValueError: the full model cannot be split over that many devices either.
    """
    split, most = arch.split(shards), max(attention.num_kv_heads for attention in arch.attention)

    def fits(kv_heads: int) -> bool:
        """Whether the heads of all layers can be fewer by the same factor."""
        for attention in arch.attention:
            repeat = split.heads(attention.num_heads, attention.num_kv_heads).repeat
            few, rest = divmod(attention.num_kv_heads, most // kv_heads)
            if rest or math.lcm(few, shards) != few * repeat:
                return False
        return True

    kv_heads = next(n for n in range(1, most + 1) if most % n == 0 and fits(n))
    width = shards * max(1, 4 * HIDDEN // shards)
    narrow = _Narrow(
        shards, most // kv_heads, min(each.head_dim for each in arch.attention), arch.intermediate_size, width
    )
    arch = arch.only(arch.few(min(arch.num_layers, layers)))
    tower = arch.tower and _small(arch.tower, shards, layers)
    arch = replace(arch, tower=tower)
    return replace(arch, hidden_size=HIDDEN, intermediate_size=width, layers=tuple(map(narrow.layer, arch.layers)))


def _small(tower: Tower, shards: int, layers: int) -> Tower:
    """A narrow tower for the same images."""
    heads = shards if tower.heads % shards == 0 else 1
    width = heads * HEAD_DIM
    small = replace(tower, layers=min(tower.layers, layers), width=width, mlp_width=2 * width, heads=heads, out=HIDDEN)
    if isinstance(small, QwenVision):
        small = replace(small, seen_after=tuple(range(min(len(small.seen_after), small.layers))))
    return small


@dataclass(frozen=True)
class _Narrow:
    """Makes layers narrow.

    Args:
        fewer: heads by this factor.
        head_dim: the narrowest heads' width, which becomes HEAD_DIM; wider ones become twice that.
        width: of the feed-forward networks, which becomes `narrow`; those twice as wide stay so.
    """

    shards: int
    fewer: int
    head_dim: int
    width: int
    narrow: int

    def layer(self, spec: LayerSpec) -> LayerSpec:
        inputs = spec.inputs and replace(spec.inputs, width=HEAD_DIM)
        feed_forward = self.feed_forward(spec.feed_forward)
        mixer = self.linear(spec.mixer) if isinstance(spec.mixer, DeltaNet) else self.attention(spec.mixer)
        return replace(spec, mixer=mixer, feed_forward=feed_forward, inputs=inputs)

    def linear(self, mixer: DeltaNet) -> DeltaNet:
        """A key head on each device, with as many value heads as it has."""
        keys, values = self.shards, self.shards * mixer.values_per_key
        return replace(mixer, num_key_heads=keys, num_value_heads=values, key_dim=HEAD_DIM, value_dim=HEAD_DIM)

    def attention(self, attention: Attention) -> Attention:
        head_dim = HEAD_DIM if attention.head_dim == self.head_dim else 2 * HEAD_DIM
        return replace(
            attention,
            num_heads=attention.num_heads // self.fewer,
            num_kv_heads=attention.num_kv_heads // self.fewer,
            head_dim=head_dim,
            scale=attention.scale * (attention.head_dim / head_dim) ** 0.5,
            rope=attention.rope and self.rope(attention.rope),
        )

    def rope(self, rope: Rope) -> Rope:
        """For heads of HEAD_DIM channels: the first of longrope's divisors, as often as there are pairs."""
        pairs = int(HEAD_DIM * rope.part) // 2
        return replace(rope, short=rope.short[:1] * pairs, long=rope.long[:1] * pairs)

    def feed_forward(self, network: FeedForward) -> FeedForward:
        match network:
            case Mlp():
                return replace(network, width=self.narrow * (network.width // self.width))
            case Experts():
                return self.experts(network)
            case MlpBesideExperts():
                mlp = replace(network.mlp, width=self.narrow * (network.mlp.width // self.width))
                return MlpBesideExperts(mlp, self.experts(network.experts))

    def experts(self, experts: Experts) -> Experts:
        """At least as many as a token takes, as many on each device."""
        count = self.shards * -(-max(8, experts.per_token) // self.shards)
        shared = experts.shared and replace(experts.shared, width=self.shards * max(1, 64 // self.shards))
        return replace(experts, count=count, width=64, shared=shared)


def generic(max_position: int | None) -> Architecture:
    """Llama 3 70B except for its vocabulary. `tiny` uses it for a model whose config.json cannot be read."""
    norm = Norm(1e-5)
    attention = Attention(64, 8, 128, scale=128**-0.5, rope=Rope(theta=500000.0))
    return Architecture(
        family="llama",
        vocab_size=32000,
        hidden_size=8192,
        intermediate_size=28672,
        layers=(LayerSpec(attention, Mlp(28672, Activation("silu")), norm),) * 80,
        max_position=max_position or 8192,
        norm=norm,
        tied_embeddings=False,
        eos_token_ids=(1,),
    )
