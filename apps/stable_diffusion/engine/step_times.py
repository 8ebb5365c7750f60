"""Measured times of denoising steps."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from apps.stable_diffusion.engine.request import Size

NEW = 0.3
"""Weight of the newest step in the smoothed time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, for metrics."""

    pictures: int
    seconds_per_step: float


class StepTimes:
    """Smoothed seconds per step, for each size and batch size that a program is compiled for."""

    def __init__(self, batch_sizes: Sequence[int]):
        self.launches: deque[Launch] = deque(maxlen=4096)
        """The latest launches, oldest first; the publisher of metrics removes them."""
        self._batch_sizes = tuple(batch_sizes)
        self._seconds: dict[tuple[Size, int], float] = {}

    def note(self, size: Size, pictures: int, steps: int, seconds: float) -> None:
        shape, step = self._shape(size, pictures), seconds / steps
        self._seconds[shape] = NEW * step + (1 - NEW) * self._seconds.get(shape, step)
        self.launches.append(Launch(pictures, step))

    def seconds_per_step(self, size: Size, pictures: int) -> float | None:
        """Of a batch; None: not measured yet."""
        return self._seconds.get(self._shape(size, pictures))

    def slowest(self, size: Size) -> float:
        """Longest seconds per step of a size; 0 if none was measured. Safe from any thread."""
        return max((seconds for (known, _), seconds in list(self._seconds.items()) if known == size), default=0.0)

    def _shape(self, size: Size, pictures: int) -> tuple[Size, int]:
        return size, next(n for n in self._batch_sizes if n >= pictures)
