"""How published figures of TPUs compare with this planner's estimates, figure by figure.

`figures.json` has both; `python -m tools.calibrate` computes the estimates again and writes the page. A new figure is
one more entry there.
"""

from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FIGURES = Path(__file__).parent / "figures.json"
ENOUGH = 3
"""Figures of a generation that have a median of their own."""
WIDE = 0.1
"""Share of the figures beyond either end of the spread."""


class Figure(BaseModel):
    """A published figure, the workload that it is of, and what the planner computes for it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    system: str = Field(description="whose figure it is: an engine, a paper")
    source: str
    model: str
    slice: str
    fields: dict[str, str | int] = Field(default_factory=dict, description="of the config")
    prompt: str = Field(description="tokens, as --prompt-tokens has them")
    answer: str
    concurrency: int
    requests: int
    unit: Literal["tokens/s", "requests/s", "ms/token"]
    published: float
    assumed: str = Field("", description="what the source does not say")
    estimate: float | None = None
    floor: float | None = None
    compiler: str = ""

    @property
    def ratio(self) -> float:
        """How many times as long the published run took as the estimate."""
        return self._times(self.estimate)

    @property
    def over_floor(self) -> float:
        return self._times(self.floor)

    def _times(self, computed: float | None) -> float:
        assert computed is not None
        return self.published / computed if self.unit == "ms/token" else computed / self.published


@cache
def figures() -> tuple[Figure, ...]:
    from pydantic import TypeAdapter

    return tuple(TypeAdapter(list[Figure]).validate_json(FIGURES.read_bytes()))


def of_generation(generation: str | None) -> list[Figure]:
    """The figures that are known of a generation, or all where it has fewer than ENOUGH; None: all."""
    known = [figure for figure in figures() if figure.estimate is not None]
    own = [figure for figure in known if figure.slice.partition(":")[0] == generation]
    return own if len(own) >= ENOUGH else known


def correction(generation: str | None = None) -> float:
    """The median ratio: what an estimated step's time is multiplied by."""
    return median([figure.ratio for figure in of_generation(generation)] or [1.0])


def spread(generation: str | None = None) -> tuple[float, float]:
    """Of the ratios over their median: all but a tenth of them at either end."""
    ratios, middle = sorted(figure.ratio for figure in of_generation(generation)) or [1.0], correction(generation)
    beyond = int(WIDE * len(ratios))
    return ratios[beyond] / middle, ratios[-1 - beyond] / middle
