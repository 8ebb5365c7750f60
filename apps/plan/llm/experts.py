"""What a step reads and computes of a mixture of experts, where its router picks every expert equally often.

The compiler cannot know: the loop over experts depends on what the tokens pick. Real routers are less even. Then fewer
experts are read, and the device that holds the busiest ones computes more.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from apps.llm.engine.model.architecture import Architecture, Experts
from apps.llm.engine.model.experts import block_of

DRAWS = 400


@dataclass(frozen=True)
class Load:
    """Of one layer in a step."""

    read: float
    """Share of the experts that some token picks."""
    blocks: float
    """Turns of the loop on the busiest device, which the others wait for."""
    even_blocks: float
    """The same on the average device."""


@cache
def load(experts: Experts, tokens: int, devices: int) -> Load:
    """The means over draws from a fixed seed, for a step of `tokens` tokens with the experts split over `devices`."""
    # A token picks an expert once at most, so that an expert's tokens are binomial. That they add up is left out.
    share = experts.per_token / experts.count
    picked = np.random.default_rng(0).binomial(tokens, share, (DRAWS, devices, experts.count // devices))
    blocks = (-(-picked // block_of(tokens, experts))).sum(axis=2)
    return Load(float((picked > 0).mean()), float(blocks.max(axis=1).mean()), float(blocks.mean()))


def batch_of_all(experts: Experts) -> int:
    """Tokens from which a step reads more than 99 of 100 experts."""
    return math.ceil(math.log(0.01) / math.log1p(-experts.per_token / experts.count))


def block_flops(arch: Architecture, experts: Experts, tokens: int) -> float:
    """Operations of one turn of the loop."""
    return 2 * block_of(tokens, experts) * 3 * arch.hidden_size * experts.width


def weights(arch: Architecture, experts: Experts, devices: int, itemsize: int) -> float:
    """Bytes of all layers' experts on each device."""
    return sum(experts.layers) * experts.count / devices * 3 * arch.hidden_size * experts.width * itemsize
