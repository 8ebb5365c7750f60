"""How attention heads are laid out on the mesh."""

import math
from dataclasses import dataclass, replace

from apps.llm.engine.model.architecture import Architecture


@dataclass(frozen=True)
class HeadLayout:
    """`kv_heads` groups of `group` query heads and one key/value head.

    Where the checkpoint has fewer key/value heads than devices, each is repeated `repeat` times, so that every
    device holds whole groups.
    """

    kv_heads: int
    group: int
    repeat: int
    devices: int
    full: "HeadLayout | None" = None  # of the layers without a window, where they have other heads

    def of_layer(self, arch: Architecture, layer: int) -> "HeadLayout":
        return self if self.full is None or arch.windows[layer] else self.full

    @classmethod
    def once(cls, arch: Architecture, tensor_parallel: int) -> "HeadLayout":
        """Key/value heads are not repeated, however many devices there are."""
        full = arch.full and cls.once(replace(arch, num_kv_heads=arch.full.num_kv_heads, full=None), tensor_parallel)
        return cls(arch.num_kv_heads, arch.num_heads // arch.num_kv_heads, 1, tensor_parallel, full)

    @classmethod
    def of(cls, arch: Architecture, tensor_parallel: int) -> "HeadLayout":
        for width in arch.split_widths:
            if width % tensor_parallel:
                raise ValueError(
                    f"tensor_parallel {tensor_parallel} does not divide the model's intermediate_size {width}; choose "
                    "a divisor of it"
                )
        if arch.experts is not None and arch.experts.count % tensor_parallel:
            raise ValueError(
                f"tensor_parallel {tensor_parallel} does not divide the model's {arch.experts.count} experts; choose a "
                "divisor of it"
            )
        repeat = math.lcm(arch.num_kv_heads, tensor_parallel) // arch.num_kv_heads
        kv_heads = arch.num_kv_heads * repeat
        if arch.num_heads % kv_heads:
            fits = [n for n in range(1, arch.num_heads + 1) if arch.num_heads % math.lcm(arch.num_kv_heads, n) == 0]
            raise ValueError(
                f"tensor_parallel {tensor_parallel} cannot split {arch.num_heads} attention heads with "
                f"{arch.num_kv_heads} key/value heads evenly; it can be one of {fits}"
            )
        full = arch.full and cls.of(replace(arch, num_kv_heads=arch.full.num_kv_heads, full=None), tensor_parallel)
        return cls(kv_heads, arch.num_heads // kv_heads, repeat, tensor_parallel, full)
