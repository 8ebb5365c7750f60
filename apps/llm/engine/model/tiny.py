"""Tiny stand-ins for models: the same architecture options and split over devices, narrow enough for any CPU."""

import math
from dataclasses import replace

from apps.llm.engine.model.architecture import Architecture, Experts
from apps.llm.engine.model.params import HeadLayout
from apps.llm.engine.model.rope import Rope

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
    heads, full, all_kv_heads = HeadLayout.of(arch, shards), arch.full, arch.num_kv_heads

    def fits(kv_heads: int) -> bool:
        """Whether the heads of all layers can be fewer by the same factor."""
        share, kinds = all_kv_heads // kv_heads, [(all_kv_heads, heads.repeat)]
        if full is not None and heads.full is not None:
            kinds.append((full.num_kv_heads, heads.full.repeat))
        few = [(whole // share, whole % share, repeat) for whole, repeat in kinds]
        return all(not rest and math.lcm(n, shards) == n * repeat for n, rest, repeat in few)

    kv_heads = next(n for n in range(1, all_kv_heads + 1) if all_kv_heads % n == 0 and fits(n))
    layers = min(arch.num_layers, layers)
    arch = arch.only(arch.few(layers))
    return replace(
        arch,
        hidden_size=HIDDEN,
        intermediate_size=shards * max(1, 4 * HIDDEN // shards),
        num_heads=kv_heads * (arch.num_heads // arch.num_kv_heads),
        num_kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        full=full and replace(full, num_kv_heads=full.num_kv_heads * kv_heads // all_kv_heads, head_dim=2 * HEAD_DIM),
        attention_scale=arch.attention_scale * (arch.head_dim / HEAD_DIM) ** 0.5,
        per_layer_width=arch.per_layer_width and HEAD_DIM,
        experts=arch.experts and _few(arch.experts, shards),
        rope=arch.rope and _narrow(arch.rope),
    )


def _narrow(rope: Rope) -> Rope:
    """The same for heads of HEAD_DIM channels: the first of longrope's divisors, as often as there are pairs."""
    pairs = int(HEAD_DIM * rope.part) // 2
    return replace(rope, short=rope.short[:1] * pairs, long=rope.long[:1] * pairs)


def _few(experts: Experts, shards: int) -> Experts:
    """At least as many as a token takes, as many on each device."""
    count = shards * -(-max(8, experts.per_token) // shards)
    shared = shards * max(1, 64 // shards) if experts.shared_width else 0
    return replace(experts, count=count, width=64, shared_width=shared)


def generic(max_position: int | None) -> Architecture:
    """Llama 3 70B except for its vocabulary. `tiny` uses it for a model whose config.json cannot be read."""
    return Architecture(
        family="llama",
        vocab_size=32000,
        hidden_size=8192,
        intermediate_size=28672,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        max_position=max_position or 8192,
        norm_eps=1e-5,
        rope=Rope(theta=500000.0),
        activation="silu",
        tied_embeddings=False,
        attention_scale=128**-0.5,
        windows=(None,) * 80,
        eos_token_ids=(1,),
    )
