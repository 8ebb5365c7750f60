"""TPU slices: the chips that one replica owns, on one host or many."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

Generation = Literal["v4", "v5e", "v5p", "v6e", "7x"]


class TpuSlice(BaseModel):
    """One TPU slice, told by its generation and topology; written `v5e:2x4` on a command line.

    Sources: the GKE and Cloud TPU topology tables.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: Generation
    topology: str
    """Chips along each axis, as GKE writes them: `2x4`, or `2x2x1` where the chips form a 3D torus."""

    @model_validator(mode="after")
    def _known_topology(self) -> "TpuSlice":
        axes = 3 if self.generation in ("v4", "v5p", "7x") else 2
        parts = self.topology.split("x")
        if len(parts) != axes or not all(p.isdigit() and int(p) > 0 for p in parts):
            example = "2x2x1" if axes == 3 else "2x4"
            raise ValueError(
                f"topology {self.topology!r} of {self.generation} must have {axes} axes, such as {example}"
            )
        return self

    @property
    def chips(self) -> int:
        return math.prod(int(n) for n in self.topology.split("x"))

    @property
    def single_host(self) -> bool:
        """Whether one machine holds the whole slice: up to 8 chips of v5e and v6e, 4 of the others."""
        return self.chips <= (8 if self.generation in ("v5e", "v6e") else 4)


def _parse(value: Any) -> Any:
    if isinstance(value, str):
        generation, colon, topology = value.partition(":")
        if not colon:
            raise ValueError(f"slice {value!r} must be written GENERATION:TOPOLOGY, such as v5e:2x4")
        return {"generation": generation, "topology": topology}
    return value


SliceField = Annotated[TpuSlice, BeforeValidator(_parse)]
"""A field that takes a TpuSlice, its dump, or the short form `v5e:2x4`."""
