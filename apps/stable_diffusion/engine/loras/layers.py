"""The layers of a component that LoRA can change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LoraLayer:
    """A layer that a LoRA can change."""

    size: int
    """Pixels of a convolution's side; 1 for a matrix, too."""
    inputs: int
    outputs: int

    @property
    def group(self) -> str:
        return f"{self.size}x{self.size} {self.inputs} to {self.outputs}"

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the two matrices."""
        kernel = () if self.size == 1 else (self.size, self.size)
        return (*kernel, rank, self.inputs), (rank, self.outputs)


Layers = Mapping[str, LoraLayer]
"""A component's layers by their names, sorted."""


def layers_of(tensors: Mapping[str, Any]) -> dict[str, LoraLayer]:
    """The layers that LoRA can change: all with a matrix or a convolution. Embeddings have a table instead.

    Args:
        tensors: a component's arrays or their shapes, by name.
    """
    found = {}
    for name in sorted(tensors):
        shape = tensors[name].shape
        if name.endswith(".weight") and not name.endswith("embedding.weight") and len(shape) in (2, 4):
            found[name.removesuffix(".weight")] = LoraLayer(shape[0] if len(shape) == 4 else 1, *shape[-2:])
    return found


def grouped(layers: Layers) -> dict[str, tuple[str, int]]:
    """Layer -> its group, and which of the group it is."""
    counts: dict[str, int] = {}
    found = {}
    for name, layer in layers.items():
        found[name] = layer.group, counts.setdefault(layer.group, 0)
        counts[layer.group] += 1
    return found
