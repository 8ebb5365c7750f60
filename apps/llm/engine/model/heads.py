"""How attention heads are laid out on the mesh."""

import math
from dataclasses import dataclass, replace

from apps.llm.engine.model.architecture import Architecture, Experts


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
    expert_parts: int = 1
    """Devices that share the width of each expert; `devices / expert_parts` groups of them have different experts."""

    def of_layer(self, arch: Architecture, layer: int) -> "HeadLayout":
        return self if self.full is None or arch.windows[layer] else self.full

    @classmethod
    def once(cls, arch: Architecture, tensor_parallel: int) -> "HeadLayout":
        """Key/value heads are not repeated, however many devices there are."""
        full = arch.full and cls.once(replace(arch, num_kv_heads=arch.full.num_kv_heads, full=None), tensor_parallel)
        return cls(arch.num_kv_heads, arch.num_heads // arch.num_kv_heads, 1, tensor_parallel, full)

    @classmethod
    def of(cls, arch: Architecture, tensor_parallel: int, expert_parallel: int | None = None) -> "HeadLayout":
        """The layout over `tensor_parallel` devices.

        Args:
            expert_parallel: groups that the experts are split over; default: as many as their number allows.

        Raises:
            ValueError: the model does not split so; says which field to change.
        """
        for width in arch.split_widths:
            if width % tensor_parallel:
                raise ValueError(
                    f"tensor_parallel {tensor_parallel} does not divide the model's intermediate_size {width}; choose "
                    "a divisor of it"
                )
        parts = tensor_parallel // _expert_groups(arch.experts, tensor_parallel, expert_parallel)
        repeat = math.lcm(arch.num_kv_heads, tensor_parallel) // arch.num_kv_heads
        kv_heads = arch.num_kv_heads * repeat
        if arch.num_heads % kv_heads:
            fits = [n for n in range(1, arch.num_heads + 1) if arch.num_heads % math.lcm(arch.num_kv_heads, n) == 0]
            raise ValueError(
                f"tensor_parallel {tensor_parallel} cannot split {arch.num_heads} attention heads with "
                f"{arch.num_kv_heads} key/value heads evenly; it can be one of {fits}"
            )
        full = arch.full and cls.of(
            replace(arch, num_kv_heads=arch.full.num_kv_heads, full=None), tensor_parallel, expert_parallel
        )
        return cls(kv_heads, arch.num_heads // kv_heads, repeat, tensor_parallel, full, parts)


def _expert_groups(experts: Experts | None, devices: int, asked: int | None) -> int:
    if experts is None:
        if asked is not None:
            raise ValueError(f"expert_parallel is {asked}, but this model has no experts; leave it unset")
        return devices
    if asked is not None and devices % asked:
        raise ValueError(f"expert_parallel {asked} does not divide tensor_parallel {devices}; choose a divisor of it")
    tried = [asked] if asked else [groups for groups in range(devices, 0, -1) if devices % groups == 0]
    for groups in tried:
        if experts.count % groups == 0 and experts.width % (devices // groups) == 0:
            return groups
    if asked is not None and experts.count % asked:
        raise ValueError(f"expert_parallel {asked} does not divide the model's {experts.count} experts; leave it unset")
    if asked is not None:
        raise ValueError(
            f"expert_parallel {asked} leaves {devices // asked} devices for the width of an expert, {experts.width}, "
            "which they do not divide; leave it unset"
        )
    raise ValueError(
        f"tensor_parallel {devices} does not divide the model's {experts.count} experts, nor is it a divisor of that "
        f"times one of their width, {experts.width}; choose a divisor of either"
    )
