"""How a model's layers are split over the devices of a mesh."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadLayout:
    """A layer's attention heads: `kv_heads` groups of `group` query heads and one key/value head.

    Where the checkpoint has fewer key/value heads than devices, each is repeated `repeat` times, so that every
    device holds whole groups.
    """

    kv_heads: int
    group: int
    repeat: int


@dataclass(frozen=True)
class Split:
    """Over `devices`, which hold whole heads, a share of each feed-forward network, and whole experts or parts of them.

    `Architecture.split` makes one that fits the model.
    """

    devices: int
    expert_parts: int = 1
    """Devices that share the width of each expert; `devices / expert_parts` groups of them have different experts."""
    repeats_heads: bool = True
    """False: key/value heads are laid out once, however many devices there are."""

    def heads(self, num_heads: int, num_kv_heads: int) -> HeadLayout:
        """Of a layer with so many query and key/value heads. `group` is 0 where they do not split."""
        repeat = math.lcm(num_kv_heads, self.devices) // num_kv_heads if self.repeats_heads else 1
        return HeadLayout(num_kv_heads * repeat, num_heads // (num_kv_heads * repeat), repeat)

    @property
    def expert_groups(self) -> int:
        """Groups of devices that have different experts."""
        return self.devices // self.expert_parts
