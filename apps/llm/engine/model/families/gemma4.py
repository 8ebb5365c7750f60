"""What Gemma 4's config.json says about its layers, which differ in more than their windows.

Sources: Gemma4TextConfig, Gemma4UnifiedTextConfig and their models in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.llm.engine.model.layers import LayerInput, LayerSpec, Mlp, MlpBesideExperts
from apps.llm.engine.model.rope import UnsupportedModel

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 6
"""Every so many layers, one without a window."""
OVERRIDES = {"head_dim", "num_key_value_heads"}


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


def layers(config: Mapping[str, Any], alike: Sequence[LayerSpec], mlp: Mlp) -> tuple[LayerSpec, ...]:
    """The layers of a `completed` config, from what other families would read there.

    Raises:
        UnsupportedModel: layers of one kind differ, or none has the keys that others share.
    """
    full = _full_attention(config)
    own_keys, width = _with_own_keys(config), config["hidden_size_per_layer_input"]
    sees = config.get("use_bidirectional_attention") == "vision"  # but for layers without a window
    wide = replace(mlp, width=mlp.width * (2 if config.get("use_double_wide_mlp") else 1))

    def made(layer: int, spec: LayerSpec) -> LayerSpec:
        whole = spec.attention is not None and spec.attention.window is None
        heads = full if whole else {}
        return replace(
            spec.attending(both_ways=sees and not whole, **heads | ({} if layer < own_keys else {"kv_projections": 0})),
            feed_forward=_feed_forward(spec, mlp if layer < own_keys else wide),
            inputs=LayerInput(width, mlp.activation, config.get("pad_token_id") or 0) if width else None,
            scalar=True,
        )

    return tuple(made(layer, spec) for layer, spec in enumerate(alike))


def _feed_forward(spec: LayerSpec, mlp: Mlp) -> Mlp | MlpBesideExperts:
    return mlp if spec.experts is None else MlpBesideExperts(mlp, spec.experts)


def _full_attention(config: Mapping[str, Any]) -> dict[str, Any]:
    """What layers without a window have in place of the others' heads: fields of `Attention`. With `attention_k_eq_v`
    keys give the values."""
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
    return {
        "num_kv_heads": found["num_key_value_heads"],
        "head_dim": found["head_dim"],
        "kv_projections": 1 if shared else 2,
    }


def _with_own_keys(config: Mapping[str, Any]) -> int:
    """How many layers have keys and values of their own, the first; the others use those of their kind's last."""
    kinds, shared = config["layer_types"], config.get("num_kv_shared_layers") or 0
    own = kinds[: len(kinds) - shared]
    if missing := set(kinds) - set(own):
        raise UnsupportedModel(
            f"config.json: num_kv_shared_layers {shared} is not supported: it leaves no {', '.join(missing)} with "
            "keys of its own"
        )
    return len(own)


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    layers = config.get("num_hidden_layers", 0)
    default = [SLIDING if (layer + 1) % PERIOD else FULL for layer in range(layers)]
    kinds = list(config.get("layer_types") or default)
    if unknown := set(kinds) - {SLIDING, FULL}:
        raise UnsupportedModel(f"config.json: layer_types {', '.join(unknown)} is not supported")
    return [*kinds[:-1], FULL]  # as transformers does
