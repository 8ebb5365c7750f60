"""What Qwen3.5's config.json says beyond other Qwens': which layers have linear attention, and gates on the others.

3.6 and 3.8 are built alike, and so was Qwen3-Next. Sources: Qwen3_5TextConfig, Qwen3_5MoeTextConfig, Qwen3NextConfig
and their models in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import Attention, DeltaNet, LayerSpec, Norm
from apps.llm.engine.model.rope import UnsupportedModel

LINEAR, FULL = "linear_attention", "full_attention"
SECTIONS = 11, 11, 10


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the fields that are computed.

    Raises:
        UnsupportedModel: a layer has a kind of its own, or heads do not belong together.
    """
    layers, period = config["num_hidden_layers"], config.get("full_attention_interval") or 4
    kinds = config.get("layer_types") or [FULL if (layer + 1) % period == 0 else LINEAR for layer in range(layers)]
    if len(kinds) != layers:
        raise UnsupportedModel(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    if unknown := set(kinds) - {LINEAR, FULL}:
        raise UnsupportedModel(f"config.json: layer_types {', '.join(sorted(map(str, unknown)))} is not supported")
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if values % keys:
        raise UnsupportedModel(
            f"config.json: linear_num_value_heads {values} is not a multiple of linear_num_key_heads {keys}"
        )
    rope = {**(config.get("rope_parameters") or {})}
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 0.25)
    # A mixture has no layer without experts, and does not say how wide one would be.
    width = {"intermediate_size": config.get("moe_intermediate_size")}
    return {**width, **config, "layer_types": kinds, "rope_parameters": rope}


def described(arch: Architecture, config: Mapping[str, Any], fused: bool = False) -> Architecture:
    """The architecture of a `completed` config, from what other families would read there."""
    linear = DeltaNet(
        num_key_heads=config["linear_num_key_heads"],
        num_value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        taps=config["linear_conv_kernel_dim"],
        norm=Norm(config["rms_norm_eps"]),
        fused=fused,
    )

    # Of an image's tokens: its row and column turn some pairs, in the place of their position.
    sections = tuple(config["rope_parameters"].get("mrope_section") or SECTIONS) if not fused else ()

    def layer(spec: LayerSpec, kind: str) -> LayerSpec:
        if kind == LINEAR:
            return replace(spec, mixer=linear)
        assert isinstance(spec.mixer, Attention) and spec.mixer.rope is not None
        rope = replace(spec.mixer.rope, sections=sections, in_turns=True)
        return spec.attending(gated=True, gate_in_q=True, rope=rope)

    return replace(arch, layers=tuple(map(layer, arch.layers, config["layer_types"])))


described_next = partial(described, fused=True)
