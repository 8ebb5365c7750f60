"""What a picture asks of ControlNets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from apps.serving.errors import RequestError

ControlMode = Literal["balanced", "prompt", "control"]
MODES: dict[ControlMode, str] = {
    "balanced": "Balanced",
    "prompt": "My prompt is more important",
    "control": "ControlNet is more important",
}
"""With the names that web UIs have for them."""
MAX_WEIGHT = 10.0
MOST = 3
"""ControlNets of a picture: each takes half as long as its step."""
SOFT, SOFT_FROM = 0.825, 12
"""What `prompt` and `control` multiply weights with: SOFT to the power of SOFT_FROM, then one less for each layer.

Source: `control_scales` in scripts/hook.py of the web UI's ControlNet extension.
"""


@dataclass(frozen=True)
class ControlUse:
    """A ControlNet that a picture is made with."""

    name: str
    image: np.ndarray | None
    """[height, width, 3] uint8 of the picture's size: the map that it reads, such as edges or depth. None: the first
    pass is made without it."""
    weight: float = 1.0
    start: float = 0.0
    end: float = 1.0
    """Shares of the steps between which it is used."""
    mode: ControlMode = "balanced"
    """On the prompt: less is added, more of it to the coarser layers. On the control: likewise, and only with the
    prompt, not without it."""
    second_image: np.ndarray | None = None
    """What `image` is, for a second pass."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise RequestError("controlnets", f"controlnets: weight is {self.weight}; it can be 0 to {MAX_WEIGHT:g}")
        if not 0 <= self.start <= self.end <= 1:
            raise RequestError(
                "controlnets",
                f"controlnets: start is {self.start} and end is {self.end}; they are shares of the steps, from 0 to 1",
            )
        if self.mode not in MODES:
            raise RequestError("controlnets", f"controlnets: mode is {self.mode!r}; choose one of: {', '.join(MODES)}")

    def at(self, step: int, steps: int) -> bool:
        """Whether it is used in a step, counted from 0, as diffusers' pipelines have it."""
        return not (step / steps < self.start or (step + 1) / steps > self.end)

    def scales(self, passes: int, layers: int, pooled: bool) -> np.ndarray:
        """[passes, layers] float32: what its residuals are multiplied with in a picture's passes.

        Args:
            passes: 2 with guidance, of which the first is without the prompt.
            pooled: see `ControlNetFile`.
        """
        scales = np.full((passes, layers), self.weight, np.float32)
        if self.mode != "balanced":
            scales *= SOFT ** (SOFT_FROM - np.arange(layers, dtype=np.float32))
        if passes == 2 and (pooled or self.mode == "control"):
            scales[0] = 0
        return scales


def in_second_pass(uses: Sequence[ControlUse]) -> tuple[ControlUse, ...]:
    """Those of a picture's second pass."""
    return tuple(
        replace(use, image=use.second_image, second_image=None) for use in uses if use.second_image is not None
    )


@dataclass(frozen=True)
class KnownControls:
    """The ControlNets that requests may name."""

    names: tuple[str, ...] = ()

    def check(self, uses: Sequence[ControlUse]) -> None:
        """Raises RequestError for one that is not known here, or too many."""
        if uses and not self.names:
            raise RequestError(
                "controlnets",
                "controlnets: this server has no ControlNet; set controlnets in its config, or leave them out",
            )
        if len(uses) > MOST:
            raise RequestError("controlnets", f"controlnets: there are {len(uses)}; a picture can have {MOST}")
        for use in uses:
            if use.name not in self.names:
                raise RequestError(
                    "controlnets",
                    f"controlnets: there is no ControlNet {use.name!r:.100}; choose one of: {', '.join(self.names)}",
                )
