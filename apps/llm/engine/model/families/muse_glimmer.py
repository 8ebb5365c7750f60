"""What Muse Glimmer's config.json says beyond other families': which layers are rotated, gates, norms, and the head.

Three layers with a window and rotation, then one with neither, counted from the last. Sources: MuseGlimmerTextConfig
and its model in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import LayerSpec, Norm
from apps.llm.engine.model.rope import UnsupportedModel

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 4


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the fields that are computed.

    Raises:
        UnsupportedModel: a list does not have an entry for each layer, or a layer has a kind of its own.
    """
    layers = config["num_hidden_layers"]
    whole = [(layers - 1 - layer) % PERIOD == 0 for layer in range(layers)]
    lists = {
        "layer_types": config.get("layer_types") or [FULL if each else SLIDING for each in whole],
        "layer_rope_theta": config.get("layer_rope_theta") or [not each for each in whole],
    }
    for name, entries in lists.items():
        if len(entries) != layers:
            raise UnsupportedModel(f"config.json: {name} has {len(entries)} entries for {layers} layers")
    if unknown := set(lists["layer_types"]) - {SLIDING, FULL}:
        raise UnsupportedModel(f"config.json: layer_types {', '.join(sorted(map(str, unknown)))} is not supported")
    return {**config, **lists}


def described(arch: Architecture, config: Mapping[str, Any]) -> Architecture:
    """The architecture of a `completed` config, from what other families would read there.

    Raises:
        UnsupportedModel: a layer is rotated by another theta than the others.
    """
    eps = config["rms_norm_eps"]
    norm, post_norm = Norm(eps, plus_one=True), Norm(config["post_norm_eps"], plus_one=True)

    def layer(spec: LayerSpec, theta: float) -> LayerSpec:
        attention = spec.attention
        assert attention is not None
        rope = attention.rope if theta else None
        # transformers rotates all by one theta, whatever this says; others take what it says.
        if rope is not None and theta not in (True, rope.theta):
            raise UnsupportedModel(
                f"config.json: layer_rope_theta {theta} is not supported: it can only be 0, or rope_theta, {rope.theta}"
            )
        scale, qk_norm = attention.scale * config["qk_scale_factor"], Norm(eps, weighted=False)
        gated = spec.attending(rope=rope, scale=scale, qk_norm=qk_norm, gated=True)
        return replace(gated, norm=norm, post_norm=post_norm)

    return replace(
        arch,
        layers=tuple(map(layer, arch.layers, config["layer_rope_theta"])),
        norm=Norm(eps, wide=True),
        embedding_norm=Norm(eps, weighted=False),
        logit_scale=config["output_multiplier"],
        final_softcap=config["final_logit_softcapping"],
    )
