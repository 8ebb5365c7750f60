"""Fields of config.json that take more than a look: families name them, or leave them out, each in its own way."""

from collections.abc import Mapping
from typing import Any, Literal

from apps.llm.engine.model.rope import UnsupportedModel

GATE_SLOPE = 1.702
"""Of gpt-oss's gates: sigmoid(GATE_SLOPE * x)."""


def gate_limit(config: Mapping[str, Any]) -> float:
    alpha = config.get("swiglu_alpha", GATE_SLOPE)
    if alpha != GATE_SLOPE:
        raise UnsupportedModel(f"config.json: swiglu_alpha {alpha} is not supported: it can only be {GATE_SLOPE}")
    return float(config.get("swiglu_limit", 7.0))


def activation(config: Mapping[str, Any], family: str) -> Literal["silu", "gelu_tanh"]:
    # Gemma's first configs say "gelu", but the models were trained with the tanh approximation; transformers uses it.
    name = config.get("hidden_activation") or config.get("hidden_act")
    if family.startswith("gemma"):
        name = {None: "gelu_pytorch_tanh", "gelu": "gelu_pytorch_tanh"}.get(name, name)
    known: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if name not in known:
        raise UnsupportedModel(f"config.json: hidden_act {name!r} is not supported; supported: {', '.join(known)}")
    return known[name]


def windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window", 4096 if family == "gemma2" else None)
    if family == "qwen2" or family == "qwen3":
        window = window if config.get("use_sliding_window") else None
    if family not in ("mistral", "phi3", "gemma2", "gemma3", "gemma4", "gpt_oss", "qwen2", "qwen3") or not window:
        return (None,) * layers
    if window >= config["max_position_embeddings"] and family != "gemma4":  # as Phi-3 128k has it
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is None and family in ("gemma2", "gemma3", "gpt_oss"):
        period = config.get("sliding_window_pattern", 6) if family == "gemma3" else 2
        kinds = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]
    elif kinds is None and family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", layers)
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    elif kinds is None:
        kinds = ["sliding_attention"] * layers
    if len(kinds) != layers:
        raise UnsupportedModel(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def labels(config: Mapping[str, Any]) -> int:
    """Labels of a model that classifies sequences, 0 of any other."""
    if not any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return 0
    count = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    if count > 2:
        raise UnsupportedModel(f"config.json: a classifier of {count} labels is not supported: it can have 1 or 2")
    return int(count)
