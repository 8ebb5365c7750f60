"""Peak figures of a TPU device, by its generation and the shape of its slice."""

from dataclasses import dataclass

from ray_configs.tpu import TpuSlice


@dataclass(frozen=True)
class Peaks:
    """One device's published limits. A device is a chip, or one TensorCore where JAX sees two per chip."""

    flops_per_s: float
    hbm_bytes_per_s: float
    ici_bytes_per_s: float
    cycles_per_s: float | None

    @classmethod
    def of(cls, slice: TpuSlice, devices: int) -> "Peaks":
        facts, cores = slice.facts, devices / slice.chips
        return cls(
            flops_per_s=facts.bf16_tflops * 1e12 / cores,  # int8 weights are multiplied as bfloat16
            hbm_bytes_per_s=facts.hbm_gb_per_s * 1e9 / cores,
            ici_bytes_per_s=facts.ici_gb_per_s * 1e9 / ports(slice) * fewest_links(slice),
            cycles_per_s=facts.clock_ghz * 1e9 if facts.clock_ghz else None,
        )


def ports(slice: TpuSlice) -> int:
    """Links of a chip: two for each axis of its generation's torus."""
    return 2 * len(slice.topology.split("x"))


def fewest_links(slice: TpuSlice) -> int:
    """Links of the chip with the fewest neighbours, which limits a ring over all chips.

    An axis wraps around, and so gives two links, only where it has the pod's full length (v3, v5e, v6e) or all axes are
    multiples of four (v4, v5p, 7x, whose cubes are joined by optical switches).
    """
    axes = [int(length) for length in slice.topology.split("x")]
    if len(axes) == 3:
        closed = [all(length % 4 == 0 for length in axes)] * 3
    else:
        pod = 32 if slice.generation == "v3" else 16
        closed = [length == pod for length in axes]
    return max(1, sum(0 if length == 1 else 2 if ring else 1 for length, ring in zip(axes, closed)))
