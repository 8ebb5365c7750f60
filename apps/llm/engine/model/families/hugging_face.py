"""Reads the architecture of a checkpoint's decoder from its Hugging Face config.json.

Sources: the config classes and modeling files of transformers for llama, mistral, mixtral, phi3, qwen2, qwen2_moe,
qwen3, qwen3_moe, qwen3_vl, qwen3_vl_moe, gemma, gemma2, gemma3 and gpt_oss; `gemma4`, `muse_glimmer` and `qwen3_5`
describe theirs, `defaults` what a file leaves out.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import config_fields, defaults, gemma4, muse_glimmer, qwen3_5
from apps.llm.engine.model.families.config_fields import check_fields, check_together
from apps.llm.engine.model.layers import Activation, Attention, Experts, LayerSpec, Mlp, Norm
from apps.llm.engine.model.rope import UnsupportedModel, ropes

FAMILIES = (
    *("llama", "mistral", "mixtral", "mistral3", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    *("gpt_oss", "muse_glimmer", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    *("qwen3_next", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
)
WITH_TOWER = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "mistral3": "mistral",
    "muse_glimmer": "muse_glimmer_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Families with towers for other media, which are not loaded, and their decoder's where its config does not say it."""
TIED = {"muse_glimmer": None} | dict.fromkeys(
    ("qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), False
)
"""Whether the head of such a family is tied to the embeddings where its config does not say it; others': yes."""
DESCRIBED: Mapping[str, Callable[..., Architecture]] = {
    "muse_glimmer": muse_glimmer.described,
    "qwen3_5": qwen3_5.described,
    "qwen3_5_moe": qwen3_5.described,
    "qwen3_next": qwen3_5.described_next,
}
"""Families of which more is to be said once their layers are read as others' are."""
DENSE = {
    "mixtral": "mistral",
    "qwen2_moe": "qwen2",
    "qwen3_moe": "qwen3",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_next": "qwen3_5",
}
"""Families with experts, and the one that they are otherwise like."""
LINEAR = "qwen3_5", "qwen3_next"
"""How families with linear attention begin."""
OWN_BIAS = {"mistral", "mixtral", "phi3", "qwen2", "qwen2_moe"}
"""Families whose attention has biases or none, whatever attention_bias says."""
QK_NORMED = {"qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma3", "gemma4"}
"""Families whose queries and keys are normed, head by head."""
Need = Callable[..., Any]
"""A field's value, or the default; raises UnsupportedModel if there is neither."""


def from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> Architecture:
    """The architecture that a config.json (and a generation_config.json, for its eos tokens) describes.

    Raises:
        UnsupportedModel: the family or an option is not supported, a field is missing, or a number is out of range.
    """
    try:
        arch = _from_hf_config(config, generation)
    except (ArithmeticError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"config.json: a field has a value of the wrong type, or 0: {error}") from error
    check_together(arch)
    return arch


def _from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> Architecture:
    config, family = _decoder_of(config)
    check_fields(config, generation)
    config = defaults.completed(config, family)
    if family == "gemma3_text":
        family = "gemma3"
        if config.get("use_bidirectional_attention"):
            raise UnsupportedModel("config.json: use_bidirectional_attention is not supported: the model is an encoder")
    if family.startswith("gemma4"):
        config, family = gemma4.completed(config, family), "gemma4"
    if family == "muse_glimmer_text":
        config, family = muse_glimmer.completed(config), "muse_glimmer"
    if family == "qwen2_5_vl_text":
        family = "qwen2"
    if family.startswith("qwen3_vl"):
        config, family = _in_turns(config), family.removesuffix("_text").replace("_vl", "")
    if family.startswith(LINEAR):
        config, family = qwen3_5.completed(config), family.removesuffix("_text")

    def need(name: str, default: Any = None) -> Any:
        value = config.get(name, default)
        if value is None:
            raise UnsupportedModel(f"config.json: field {name!r} is missing (model_type {family})")
        return value

    context, layers = _layers(config, family, need)
    labels = config_fields.labels(config)
    ends = (generation or {}).get("eos_token_id")
    capped = family in ("gemma2", "gemma3", "gemma4")
    arch = Architecture(
        family=DENSE.get(family, family),
        vocab_size=need("vocab_size"),
        hidden_size=need("hidden_size"),
        intermediate_size=need("intermediate_size"),
        layers=layers,
        max_position=context,
        norm=_norm(family, need),
        tied_embeddings=bool(config.get("tie_word_embeddings")) and not labels,
        scaled_embeddings=family.startswith("gemma"),
        final_softcap=config.get("final_logit_softcapping") if capped else None,
        eos_token_ids=config_fields.token_ids(
            config.get("eos_token_id") if ends is None else ends, need("vocab_size"), "eos_token_id"
        ),
        labels=labels,
        answers=tuple(config.get("classifier_from_token") or ()) or None,
    )
    describe = DESCRIBED.get(family)
    return describe(arch, config) if describe else arch


def _layers(config: Mapping[str, Any], family: str, need: Need) -> tuple[int, tuple[LayerSpec, ...]]:
    """The longest sequence, and what each layer is."""
    sparse = _layers_of_experts(config, family, need)
    activation = Activation(
        config_fields.activation(config, family), config_fields.gate_limit(config) if family == "gpt_oss" else None
    )
    experts = _experts(config, family, need, activation) if any(sparse) else None
    attention = _attention(config, family, need)
    rope, window_rope = ropes(config, family, attention.head_dim)
    # Gemma 3's own numbers are those of the stretched context already.
    positions = need("max_position_embeddings")
    context = positions if family == "gemma3" else rope.context(positions)
    windows = config_fields.windows(config, family, len(sparse), context)
    mlp_bias = bool(config.get("mlp_bias", False)) and family == "llama"
    mlp = Mlp(need("intermediate_size"), activation, bias=mlp_bias, fused=family == "phi3")
    norm = _norm(family, need)
    post_norm = norm if family in ("gemma2", "gemma3", "gemma4") else None

    def layer(window: int | None, has_experts: bool) -> LayerSpec:
        layer_rope = window_rope if window is not None and window_rope is not None else rope
        feed_forward = experts if has_experts and experts is not None else mlp
        return LayerSpec(replace(attention, window=window, rope=layer_rope), feed_forward, norm, post_norm)

    layers = tuple(map(layer, windows, sparse))
    return context, gemma4.layers(config, layers, mlp) if family == "gemma4" else layers


def _attention(config: Mapping[str, Any], family: str, need: Need) -> Attention:
    """Without a window, and without rotation."""
    hidden, heads, gemma = need("hidden_size"), need("num_attention_heads"), family.startswith("gemma")
    head_dim = config.get("head_dim") or (256 if gemma else hidden // heads)
    if config.get("head_dim") is None and not gemma and hidden % heads:
        raise UnsupportedModel(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise UnsupportedModel(f"config.json: {heads} attention heads are not a multiple of {kv_heads} key/value heads")
    qkv_bias = family == "qwen2" or (family == "qwen2_moe" and config["qkv_bias"])
    bias = bool(config.get("attention_bias")) and family not in OWN_BIAS
    # Gemma 4's queries are not scaled: their norm's weights are.
    query_scale = need("query_pre_attn_scalar") if family in ("gemma2", "gemma3") else head_dim
    capped = family in ("gemma2", "gemma3", "gemma4")
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=1.0 if family == "gemma4" else query_scale**-0.5,
        softcap=config.get("attn_logit_softcapping") if capped else None,
        qk_norm=_norm(family, need) if family in QK_NORMED else None,
        value_norm=replace(_norm(family, need), weighted=False) if family == "gemma4" else None,
        bias=qkv_bias or bias,
        output_bias=bias,
        both_ways=family == "gemma3",
        sinks=family == "gpt_oss",
        fused=family == "phi3",
    )


def _norm(family: str, need: Need) -> Norm:
    gemma4 = family == "gemma4"
    plus_one = family.startswith(LINEAR) or (family.startswith("gemma") and not gemma4)
    return Norm(need("rms_norm_eps"), plus_one=plus_one, wide=gemma4)


def _decoder_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The config of the decoder, and its model_type. Raises UnsupportedModel if there is no such family."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    if family not in WITH_TOWER:
        return config, family
    text = config.get("text_config") or (defaults.MISTRAL3 if family == "mistral3" else {})
    if family == "qwen2_5_vl" and not text:  # as the hub has them: the decoder's fields beside the tower's
        text = {name: value for name, value in config.items() if name not in ("vision_config", "model_type")}
    # Gemma 4's files have more ends beside the decoder's config than in it; the head belongs to the whole.
    tied = config.get("tie_word_embeddings", TIED.get(family, True))
    beside = {"eos_token_id": config.get("eos_token_id"), "tie_word_embeddings": tied}
    text = {**text, **{name: value for name, value in beside.items() if value is not None}}
    inner = text.get("model_type", WITH_TOWER[family])
    if inner not in defaults.DEFAULTS:
        raise UnsupportedModel(f"config.json: text_config.model_type {inner!r} is not supported")
    return text, inner


def _in_turns(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Qwen3-VL's, with what its files may leave out or say otherwise: transformers does not ask them."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {"mrope_section": (24, 20, 20)} | rope | {"mrope_interleaved": True}
    return {**config, "rope_scaling": rope, "norm_topk_prob": True}


def _layers_of_experts(config: Mapping[str, Any], family: str, need: Need) -> tuple[bool, ...]:
    """Which layers have experts."""
    layers = range(need("num_hidden_layers"))
    if family not in DENSE and family != "gpt_oss" and not config.get("enable_moe_block"):
        return (False,) * len(layers)
    if not family.startswith("qwen"):
        return (True,) * len(layers)
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)


def _experts(config: Mapping[str, Any], family: str, need: Need, activation: Activation) -> Experts:
    # transformers 5 writes num_local_experts for all; the hub's files of Qwen say num_experts.
    count = need("num_local_experts", config.get("num_experts"))
    if family == "gpt_oss":
        width, per_token = need("intermediate_size"), need("num_experts_per_tok")
        return Experts(count, per_token, width, True, activation, names="gpt_oss", biases=True)
    if family == "mixtral":
        width, per_token = need("intermediate_size"), need("num_experts_per_tok", 2)
        return Experts(count, per_token, width, True, activation, names="mixtral")
    if family == "gemma4":
        width, per_token = need("moe_intermediate_size"), need("top_k_experts")
        return Experts(count, per_token, width, True, activation, names="gemma4")
    has_shared = family in ("qwen2_moe", "qwen3_5_moe", "qwen3_next")
    shared = Mlp(need("shared_expert_intermediate_size"), activation) if has_shared else None
    return Experts(
        count=count,
        per_token=need("num_experts_per_tok"),
        width=need("moe_intermediate_size"),
        renormalized=family == "qwen3_5_moe" or bool(config.get("norm_topk_prob", False)),
        activation=activation,
        shared=shared if shared and shared.width else None,
    )
