"""Where the matrices and biases of a mixture's experts lie in a checkpoint, in the order of a mesh.

They come one after another on each device. Devices that share experts have a part each of their width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from apps.arrays.row_ranges import Rows, Source
from apps.llm.engine.model.layers import Experts

NAMES = {"mixtral": ("w1", "w3", "w2")}
"""Of gate, up and down, where they are not Qwen's. gpt-oss's are found under those by `Checkpoint`."""


@dataclass(frozen=True)
class ExpertRows:
    """The rows of a layer's experts.

    Args:
        feed: the name that the experts' tensors begin with.
        devices: over which the experts are split.
        parts: devices that share experts.
    """

    experts: Experts
    feed: str
    hidden: int
    devices: int
    parts: int

    def into(self, kind: str, *inputs: int) -> Source:
        """The gates' and ups', `kind` is "weight" or "bias"."""
        gate, up, _ = self._names
        return tuple(
            self._rows(expert, name, "gate_up_proj", kind, first, (2, self.experts.width, *inputs), (start, stop))
            for expert, start, stop in self._placed()
            for first, name in ((0, gate), (1, up))
        )

    def down(self, kind: str, *inputs: int) -> Source:
        rows = (
            self._rows(expert, self._names[2], "down_proj", kind, 0, (1, self.hidden, *inputs), (0, self.hidden))
            for expert, _, _ in self._placed()
        )
        if not inputs or self.parts == 1:
            return tuple(rows)
        return tuple(each._replace(columns=place[1:]) for each, place in zip(rows, self._placed()))

    @property
    def _names(self) -> tuple[str, str, str]:
        return NAMES.get(self.experts.names, ("gate_proj", "up_proj", "down_proj"))

    def _placed(self) -> Iterator[tuple[int, int, int]]:
        """(expert, first and last channel of its width), in order."""
        own, share = self.experts.count * self.parts // self.devices, self.experts.width // self.parts
        for first in range(0, self.experts.count, own):
            for part in range(self.parts):
                for expert in range(first, first + own):
                    yield expert, part * share, (part + 1) * share

    def _rows(
        self,
        expert: int,
        name: str,
        together: str,
        kind: str,
        which: int,
        shape: tuple[int, ...],
        rows: tuple[int, int],
    ) -> Rows:
        """Rows of an expert's matrix: number `which` of `shape[0]` in the one tensor that Gemma 4 has for all."""
        matrices, height, *inputs = shape
        start, stop = rows
        if self.experts.names != "gemma4":
            return Rows(f"{self.feed}.experts.{expert}.{name}.{kind}", (height, *inputs), start, stop)
        first = (expert * matrices + which) * height
        whole = self.experts.count * matrices * height, *inputs
        return Rows(f"{self.feed}.experts.{together}", whole, first + start, first + stop)
