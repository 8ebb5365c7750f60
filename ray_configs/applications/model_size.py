"""Estimates a language model's parameter count, and what each host downloads of it, from its name or config."""

import json
import math
import re
from pathlib import Path

from ray_configs.llm import EngineConfig

_BILLIONS = re.compile(r"(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)[bB](?![a-z])")
_BYTES = 2
"""Bytes per parameter in the hub: nearly all models are published in bfloat16."""


def parameters(model: str) -> tuple[float, str] | None:
    """Parameter count and its source: config.json of a local folder, or the name (`-8B`). None: unknown."""
    return _from_folder(Path(model)) or _from_name(model)


def fetched_gb(config: EngineConfig) -> int | None:
    """10^9 bytes that each host downloads from the hub; None: nothing, or unknown.

    Folders and URLs are read in place, in parts.
    """
    local = config.model.startswith(("/", ".", "~")) or "://" in config.model
    if local or config.model.count("/") != 1 or config.random_weights or config.tiny:
        return None
    found = parameters(config.model)
    return math.ceil(found[0] * _BYTES / 1e9) if found else None


def _from_name(model: str) -> tuple[float, str] | None:
    name = model.rstrip("/").rsplit("/", 1)[-1]
    match = _BILLIONS.search(name)
    if match is None:
        return None
    experts, billions = match.groups()
    return int(experts or 1) * float(billions) * 1e9, f"its name {name!r}"


def _from_folder(folder: Path) -> tuple[float, str] | None:
    """Count embeddings, attention and gated feed-forward layers: nearly all parameters of the decoders served here."""
    try:
        told = json.loads((folder / "config.json").read_text())
        hidden, layers, inner = told["hidden_size"], told["num_hidden_layers"], told["intermediate_size"]
        heads = told["num_attention_heads"]
        head_dim = told.get("head_dim") or hidden // heads
        kv_heads = told.get("num_key_value_heads") or heads
        if experts := told.get("num_local_experts") or told.get("num_experts"):
            # As if every layer had experts, which all but a few of these models have.
            inner = experts * (told.get("moe_intermediate_size") or inner)
            inner += told.get("shared_expert_intermediate_size") or 0
        embeddings = told["vocab_size"] * hidden * (1 if told.get("tie_word_embeddings") else 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return embeddings + layers * (attention + 3 * hidden * inner), f"{folder}/config.json"
