"""How large a model's weights are, from what can be read without loading it."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from ray_configs.llm import EngineConfig

_BILLIONS = re.compile(r"(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)[bB](?![a-z])")


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
    found = _from_folder(Path(config.model)) or _from_name(config.model)
    if found is None or config.tiny:
        return None
    parameters, origin = found
    int8 = config.quantize_weights == "int8" or _prepared_as_int8(Path(config.model))
    each = 1 if int8 else {"bfloat16": 2, "float32": 4}[config.dtype]
    return Weights(
        parameters * each / 2**30, int8, f"{parameters / 1e9:.3g}B parameters by {origin}, {each} bytes each"
    )


def _prepared_as_int8(folder: Path) -> bool:
    """Whether `python -m apps.batch.prepare` has made the weights int8 already."""
    try:
        return json.loads((folder / "manifest.json").read_text())["quantize_weights"] == "int8"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _from_name(model: str) -> tuple[float, str] | None:
    name = model.rstrip("/").rsplit("/", 1)[-1]
    match = _BILLIONS.search(name)
    if match is None:
        return None
    experts, billions = match.groups()
    return int(experts or 1) * float(billions) * 1e9, f"its name {name!r}"


def _from_folder(folder: Path) -> tuple[float, str] | None:
    """Embeddings, attention and gated feed-forward layers: all that counts in the decoders that Podslice serves."""
    try:
        told = json.loads((folder / "config.json").read_text())
        hidden, layers, inner = told["hidden_size"], told["num_hidden_layers"], told["intermediate_size"]
        heads = told["num_attention_heads"]
        head_dim = told.get("head_dim") or hidden // heads
        kv_heads = told.get("num_key_value_heads") or heads
        embeddings = told["vocab_size"] * hidden * (1 if told.get("tie_word_embeddings") else 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return embeddings + layers * (attention + 3 * hidden * inner), f"{folder}/config.json"
