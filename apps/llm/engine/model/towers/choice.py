"""The tower that a spec describes."""

from typing import Any

import jax.numpy as jnp

from apps.llm.engine.model.towers.gemma4 import Gemma4Tower
from apps.llm.engine.model.towers.pixtral import PixtralTower
from apps.llm.engine.model.towers.qwen import QwenTower
from apps.llm.engine.model.towers.siglip import SiglipTower
from apps.llm.engine.model.towers.spec import (
    Gemma4Vision,
    PixtralVision,
    QwenVision,
    SiglipVision,
    Tower,
    WindowedVision,
)
from apps.llm.engine.model.towers.windowed import WindowedTower

AnyTower = QwenTower | WindowedTower | PixtralTower | SiglipTower | Gemma4Tower


def tower_for(spec: Tower, devices: int, dtype: Any = jnp.float32) -> AnyTower:
    match spec:
        case QwenVision():
            return QwenTower(spec, devices, dtype)
        case WindowedVision():
            return WindowedTower(spec, devices, dtype)
        case PixtralVision():
            return PixtralTower(spec, devices, dtype)
        case SiglipVision():
            return SiglipTower(spec, devices, dtype)
        case Gemma4Vision():
            return Gemma4Tower(spec, devices, dtype)
    raise TypeError(f"no tower is made of a {type(spec).__name__}")
