"""How large a model's weights are, from what can be read without loading it."""

import json
from pathlib import Path
from typing import NamedTuple

from ray_configs.llm import EngineConfig
from ray_configs.model_size import parameters


class Weights(NamedTuple):
    """Memory that a model's weights take, and where the number comes from."""

    gib: float
    int8: bool
    how: str


def weights(config: EngineConfig) -> Weights | None:
    """How large all weights are; None: cannot be told.

    From the checkpoint's config.json where it is a local folder, else from the size that most names carry (`-8B`):
    good for finding what obviously does not fit. The exact account needs the compiler.
    """
    found = parameters(config.model)
    if found is None or config.tiny:
        return None
    count, origin = found
    int8 = config.quantize_weights == "int8" or _prepared_as_int8(Path(config.model))
    each = 1 if int8 else {"bfloat16": 2, "float32": 4}[config.dtype]
    return Weights(count * each / 2**30, int8, f"{count / 1e9:.3g}B parameters by {origin}, {each} bytes each")


def _prepared_as_int8(folder: Path) -> bool:
    """Whether `python -m apps.batch.prepare` has made the weights int8 already."""
    try:
        return json.loads((folder / "manifest.json").read_text())["quantize_weights"] == "int8"
    except (OSError, ValueError, KeyError, TypeError):
        return False
