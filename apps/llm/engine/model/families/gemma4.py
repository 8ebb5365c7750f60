"""What Gemma 4's config.json says about its layers, which differ in more than their windows.

Sources: Gemma4TextConfig, Gemma4UnifiedTextConfig and their models in transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.llm.engine.model.rope import UnsupportedModel

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 6
"""Every so many layers, one without a window."""
OVERRIDES = {"head_dim", "num_key_value_heads"}


@dataclass(frozen=True)
class FullAttention:
    """The heads of the layers without a window, where they are not those of the others."""

    num_kv_heads: int
    head_dim: int
    kv_projections: int  # 1: the projection of the keys gives the values too


def completed(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The config with the fields that are computed, without nulls.

    Raises:
        UnsupportedModel: it asks for something that is not supported.
    """
    config = {name: value for name, value in config.items() if value is not None}
    unified = family.startswith("gemma4_unified")
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedModel("config.json: use_bidirectional_attention 'all' is not supported: it is an encoder")
    for name in ("enable_moe_block", "hidden_size_per_layer_input"):
        if unified and config.get(name):
            raise UnsupportedModel(f"config.json: {name} {config[name]} is not supported for {family}")
    vocab, rows = config.get("vocab_size"), config.get("vocab_size_per_layer_input", 262_144)
    if config.get("hidden_size_per_layer_input") and vocab != rows:
        raise UnsupportedModel(f"config.json: vocab_size_per_layer_input is {rows}; it can only be vocab_size, {vocab}")
    return config | {"layer_types": _layer_types(config)}


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an Architecture that no other family has, from a `completed` config.

    Raises:
        UnsupportedModel: layers of one kind differ, or none has the keys that others share.
    """
    return {
        "value_norm": True,
        "wide_norm": True,
        "layer_scalars": True,
        "full": _full_attention(config),
        "kv_of": _kv_of(config),
        "wide_shared": bool(config.get("use_double_wide_mlp")),
        "per_layer_width": config["hidden_size_per_layer_input"],
    }


def _full_attention(config: Mapping[str, Any]) -> FullAttention:
    shared = bool(config.get("attention_k_eq_v"))
    heads = (config.get("num_global_key_value_heads") if shared else None) or config["num_key_value_heads"]
    found = {"head_dim": config["global_head_dim"], "num_key_value_heads": heads}
    if "per_layer_config" in config:  # transformers 5 writes this in place of the two fields
        kinds = config["layer_types"]
        # The numbers of layers are padded with zeros, where there are ten or more.
        given = {str(layer).lstrip("0") or "0": dict(own) for layer, own in config["per_layer_config"].items()}
        own = [given.get(str(layer), given.get(kind, {})) for layer, kind in enumerate(kinds)]
        full = [own[layer] for layer, kind in enumerate(kinds) if kind == FULL]
        if any(own[layer] for layer, kind in enumerate(kinds) if kind == SLIDING) or any(o != full[0] for o in full):
            raise UnsupportedModel("config.json: per_layer_config is not supported where layers of one kind differ")
        if unknown := full[0].keys() - OVERRIDES:
            raise UnsupportedModel(f"config.json: per_layer_config with {', '.join(unknown)} is not supported")
        found = {"head_dim": config["head_dim"], "num_key_value_heads": config["num_key_value_heads"]} | full[0]
    return FullAttention(found["num_key_value_heads"], found["head_dim"], 1 if shared else 2)


def _kv_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The layer whose keys and values each layer attends to: of the last ones, the last before them of their kind."""
    kinds, shared = config["layer_types"], config.get("num_kv_shared_layers") or 0
    own = kinds[: len(kinds) - shared]
    if missing := set(kinds) - set(own):
        raise UnsupportedModel(
            f"config.json: num_kv_shared_layers {shared} is not supported: it leaves no {', '.join(missing)} with "
            "keys of its own"
        )
    last = {kind: layer for layer, kind in enumerate(own)}
    return tuple(layer if layer < len(own) else last[kind] for layer, kind in enumerate(kinds))


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    layers = config.get("num_hidden_layers", 0)
    default = [SLIDING if (layer + 1) % PERIOD else FULL for layer in range(layers)]
    kinds = list(config.get("layer_types") or default)
    if unknown := set(kinds) - {SLIDING, FULL}:
        raise UnsupportedModel(f"config.json: layer_types {', '.join(unknown)} is not supported")
    return [*kinds[:-1], FULL]  # as transformers does
