"""Fields of a language model's config.json: what they say, where families name them each in its own way, and which
numbers they can have.

Upper bounds are some ten times those of the largest models published.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import GATE_SLOPE
from apps.llm.engine.model.rope import Rope, UnsupportedModel
from apps.serving.numbers.ranges import Range, check, real

log = logging.getLogger("podslice")

FILE = "config.json"
WIDTH, LAYERS, HEADS, POSITIONS = Range(1, 2**20), Range(0, 2000), Range(1, 2**13), Range(2, 10**8)
COUNT = Range(0, 2**16)  # 0: none
EOS = Range(-1, 2**31 - 1, many=True)
THETA = real(1.01, 1e15)
ROPE = {
    "rope_theta": THETA,
    "factor": real(0.01, 1e6),
    "low_freq_factor": real(1e-3, 1e6),
    "high_freq_factor": real(1e-3, 1e6),
    "original_max_position_embeddings": POSITIONS,
    "partial_rotary_factor": real(1e-3, 1),
    "beta_fast": real(1e-3, 1e6),
    "beta_slow": real(1e-3, 1e6),
    "attention_factor": real(1e-3, 1e3),
    "mscale": real(0, 1e3),
    "mscale_all_dim": real(0, 1e3),
    "short_factor": real(1e-6, 1e6, "a divisor for each pair of channels", many=True),
    "long_factor": real(1e-6, 1e6, "a divisor for each pair of channels", many=True),
}
FIELDS = {
    "vocab_size": Range(1, 2**24),
    "vocab_size_per_layer_input": Range(1, 2**24),
    "hidden_size": Range(1, 2**17),
    "hidden_size_per_layer_input": Range(0, 2**17),
    "intermediate_size": WIDTH,
    "moe_intermediate_size": Range(0, 2**20),
    "shared_expert_intermediate_size": Range(0, 2**20),
    "num_hidden_layers": Range(1, 2000),
    "num_kv_shared_layers": LAYERS,
    "max_window_layers": LAYERS,
    "mlp_only_layers": Range(0, 2000, "the numbers of layers", many=True),
    "decoder_sparse_step": Range(1, 2000),
    "sliding_window_pattern": Range(1, 2000),
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_global_key_value_heads": HEADS,
    "head_dim": Range(2, 2**13),
    "global_head_dim": Range(2, 2**13),
    "num_experts": COUNT,
    "num_local_experts": COUNT,
    "num_experts_per_tok": COUNT,
    "top_k_experts": COUNT,
    "max_position_embeddings": POSITIONS,
    "original_max_position_embeddings": POSITIONS,
    "sliding_window": Range(0, 10**9, "0: none"),
    "rms_norm_eps": real(0, 1),
    "rope_theta": THETA,
    "rope_local_base_freq": THETA,
    "partial_rotary_factor": real(1e-3, 1),
    "query_pre_attn_scalar": real(1e-6, 1e9),
    "attn_logit_softcapping": real(1e-3, 1e9),
    "final_logit_softcapping": real(1e-3, 1e9),
    "swiglu_limit": real(1e-3, 1e9),
    "layer_rope_theta": real(0, 1e15, "0: no rotation", many=True),
    "post_norm_eps": real(0, 1),
    "full_attention_interval": Range(1, 2000),
    "linear_conv_kernel_dim": Range(2, 64),
    "linear_key_head_dim": Range(1, 2**13),
    "linear_value_head_dim": Range(1, 2**13),
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": HEADS,
    "qk_scale_factor": real(1e-6, 1e6),
    "output_multiplier": real(1e-9, 1e9),
    "num_labels": Range(0, 2**20),
    "eos_token_id": EOS,
}
MOST_PARAMETERS, MOST_POSITIONS = 1e13, 10**9


def check_fields(config: Any, generation: Any = None) -> None:
    """Check the numbers of a decoder's config, and the eos tokens of its generation_config.json.

    Raises:
        UnsupportedModel: one is out of range; names the file, the field and the value.
    """
    check(FILE, config, FIELDS, UnsupportedModel)
    for name in ("rope_parameters", "rope_scaling"):
        if scaling := config.get(name):
            for where, own in rope_objects(f"{FILE}: {name}", scaling):
                check(where, own, ROPE, UnsupportedModel)
    if generation is not None:
        check("generation_config.json", generation, {"eos_token_id": EOS}, UnsupportedModel)


def rope_objects(where: str, scaling: Any) -> list[tuple[str, Any]]:
    """A rope's object, and those in it for each kind of layer."""
    kinds = ("full_attention", "sliding_attention")
    inside = [kind for kind in kinds if isinstance(scaling, Mapping) and scaling.get(kind) is not None]
    return [(where, scaling), *((f"{where}.{kind}", scaling[kind]) for kind in inside)]


def check_together(arch: Architecture) -> None:
    """Check what the numbers make together.

    Raises:
        UnsupportedModel: no model has such sizes, or its rotary embedding cannot be computed.
    """
    if arch.num_params > MOST_PARAMETERS:
        raise UnsupportedModel(
            f"{FILE}: hidden_size {arch.hidden_size}, intermediate_size {arch.intermediate_size}, num_hidden_layers "
            f"{arch.num_layers} and vocab_size {arch.vocab_size} make {arch.num_params:.2g} parameters; at most "
            f"{MOST_PARAMETERS:g} are taken for a model's"
        )
    if arch.max_position > MOST_POSITIONS:
        raise UnsupportedModel(
            f"{FILE}: max_position_embeddings and the rotary embedding's factor make a context of {arch.max_position} "
            f"tokens; at most {MOST_POSITIONS} are taken for a model's"
        )
    if arch.experts is not None and not 1 <= arch.experts.per_token <= arch.experts.count:
        raise UnsupportedModel(
            f"{FILE}: num_experts_per_tok is {arch.experts.per_token}, of {arch.experts.count} experts"
        )
    if arch.experts is not None and arch.experts.width < 1:
        raise UnsupportedModel(f"{FILE}: moe_intermediate_size is {arch.experts.width}: it must be at least 1")
    for rope, head_dim in {(attention.rope, attention.head_dim) for attention in arch.attention}:
        if rope is not None:
            _check_rope(rope, head_dim)


def _check_rope(rope: Rope, head_dim: int) -> None:
    if int(head_dim * rope.part) % 2:
        raise UnsupportedModel(
            f"{FILE}: head_dim {head_dim}, of which a part of {rope.part:g} is rotated, makes no pairs of channels"
        )
    try:
        frequencies = [*rope.inverse_frequencies(head_dim), rope.scale]
    except ArithmeticError as error:
        raise UnsupportedModel(
            f"{FILE}: the rotary embedding's numbers do not fit together ({error}): {rope}"
        ) from error
    if not all(math.isfinite(frequency) for frequency in frequencies):
        raise UnsupportedModel(f"{FILE}: the rotary embedding's frequencies are not finite: {rope}")


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


def windows(config: Mapping[str, Any], family: str, layers: int, context: int) -> tuple[int | None, ...]:
    """Sliding window of each layer, in positions; None: full attention. `context`: the longest sequence."""
    window = config.get("sliding_window")
    if family.startswith("qwen"):
        window = window if config.get("use_sliding_window") else None
    if family in ("llama", "gemma") or not window:
        return (None,) * layers
    if window >= context and family != "gemma4":  # as Phi-3 128k has it
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is None or family in EVERY_LAYER:
        kinds = ["sliding_attention" if _slides(config, family, layer) else "full_attention" for layer in range(layers)]
    if len(kinds) != layers:
        raise UnsupportedModel(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


EVERY_LAYER = {"mistral", "mixtral", "phi3", "qwen3_moe"}
"""Families whose window is that of every layer, whatever layer_types says."""


def _slides(config: Mapping[str, Any], family: str, layer: int) -> bool:
    """Whether a layer has the window, where layer_types does not say it."""
    if family in EVERY_LAYER:
        return True
    if family == "qwen2_moe":
        return layer % 2 == 0 and layer < config["max_window_layers"]
    if family in ("qwen2", "qwen3"):
        return bool(layer >= config["max_window_layers"])
    return bool((layer + 1) % (config.get("sliding_window_pattern", 6) if family == "gemma3" else 2))


def token_ids(value: Any, vocab_size: int, field: str) -> tuple[int, ...]:
    """The tokens of a field that has one or a list, without those that no answer can have."""
    tokens = value if isinstance(value, list) else [] if value is None else [value]
    if beyond := [token for token in tokens if not 0 <= token < vocab_size]:
        log.warning("%s %s is not among the model's %d tokens: ignored", field, beyond, vocab_size)
    return tuple(token for token in tokens if 0 <= token < vocab_size)


def labels(config: Mapping[str, Any]) -> int:
    """Labels of a model that classifies sequences, 0 of any other."""
    if not any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return 0
    count = len(config["id2label"]) if config.get("id2label") is not None else config.get("num_labels", 2)
    if count > 2:
        raise UnsupportedModel(f"config.json: a classifier of {count} labels is not supported: it can have 1 or 2")
    return int(count)
