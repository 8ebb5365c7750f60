"""Measured times of denoising steps."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

NEW = 0.3
"""Weight of the newest step in the smoothed time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, for metrics."""

    pictures: int
    seconds_per_step: float


class StepTimes:
    """Smoothed seconds per step, for each group of sizes and batch size that a program is compiled for."""

    def __init__(self, batch_sizes: Sequence[int]):
        self.launches: deque[Launch] = deque(maxlen=4096)
        """The latest launches, oldest first; the publisher of metrics removes them."""
        self._batch_sizes = tuple(batch_sizes)
        self._seconds: dict[tuple[Hashable, int], float] = {}

    def note(self, group: Hashable, pictures: int, steps: int, seconds: float) -> None:
        shape, step = self._shape(group, pictures), seconds / steps
        self._seconds[shape] = NEW * step + (1 - NEW) * self._seconds.get(shape, step)
        self.launches.append(Launch(pictures, step))

    def seconds_per_step(self, group: Hashable, pictures: int) -> float | None:
        """Of a batch; None: not measured yet."""
        return self._seconds.get(self._shape(group, pictures))

    def slowest(self, group: Hashable) -> float:
        """Longest seconds per step of a group; 0 if none was measured. Safe from any thread."""
        return max((seconds for (known, _), seconds in list(self._seconds.items()) if known == group), default=0.0)

    def _shape(self, group: Hashable, pictures: int) -> tuple[Hashable, int]:
        return group, next(n for n in self._batch_sizes if n >= pictures)
