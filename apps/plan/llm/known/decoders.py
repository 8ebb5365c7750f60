"""Configs of public models, for planning without access to their config.json: gated, offline, in a mounted bucket.

The fields are those of each model's config.json on the Hugging Face hub, as far as the decoder asks for them.
"""

from typing import Any

Config = dict[str, Any]

LLAMA2 = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu"}
LLAMA3 = LLAMA2 | {"vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0}
LLAMA31: Config = LLAMA3 | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
LLAMA32 = LLAMA31 | {"rope_scaling": {**LLAMA31["rope_scaling"], "factor": 32.0}, "tie_word_embeddings": True}
GEMMA = {"model_type": "gemma", "vocab_size": 256000, "max_position_embeddings": 8192, "head_dim": 256}
GEMMA2 = {"model_type": "gemma2", "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096}
GEMMA3: Config = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA3_1B = {
    "model_type": "gemma3_text",
    "vocab_size": 262_144,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
}
GEMMA4: Config = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
}
GEMMA4_E: Config = GEMMA4 | {
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 256,
}
MISTRAL: Config = {
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
}
MISTRAL_SMALL = MISTRAL | {"vocab_size": 131072, "max_position_embeddings": 131072, "head_dim": 128}
PHI3 = {"model_type": "phi3", "max_position_embeddings": 16384, "hidden_act": "silu"}
GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "hidden_act": "silu",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
}
MUSE_GLIMMER: Config = {
    "model_type": "muse_glimmer",
    "text_config": {
        "model_type": "muse_glimmer_text",  # whose defaults are those of this size
        "num_hidden_layers": 52,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
}
QWEN35: Config = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
QWEN25 = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_theta": 1e6, "hidden_act": "silu"}
QWEN3 = QWEN25 | {"model_type": "qwen3", "vocab_size": 151936, "max_position_embeddings": 40960, "head_dim": 128}
QWEN3_VL = QWEN3 | {
    "model_type": "qwen3_vl_text",
    "max_position_embeddings": 262_144,
    "rope_theta": 5e6,
    "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
QWEN3_MOE = QWEN3 | {"model_type": "qwen3_moe", "num_experts_per_tok": 8, "norm_topk_prob": True}
MIXTRAL = MISTRAL | {"model_type": "mixtral", "rope_theta": 1e6, "num_local_experts": 8}


def _sized(
    base: dict[str, Any], layers: int, hidden: int, mlp: int, heads: int, kv: int, **more: Any
) -> dict[str, Any]:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }
    return base | sizes | more


def _with_tower(text: dict[str, Any]) -> dict[str, Any]:
    """As files have it whose decoder stands beside a tower."""
    family = text["model_type"].removesuffix("_text")
    return {"model_type": family, "text_config": text, "tie_word_embeddings": text.get("tie_word_embeddings", False)}


_B8, _B70 = (32, 4096, 14336, 32, 8), (80, 8192, 28672, 64, 8)
MODELS: dict[str, Config] = {
    "meta-llama/Llama-2-7b-hf": _sized(LLAMA2, 32, 4096, 11008, 32, 32),
    "meta-llama/Llama-2-13b-hf": _sized(LLAMA2, 40, 5120, 13824, 40, 40),
    "meta-llama/Llama-2-70b-hf": _sized(LLAMA2, *_B70),
    "meta-llama/Meta-Llama-3-8B": _sized(LLAMA3, *_B8),
    "meta-llama/Meta-Llama-3-70B": _sized(LLAMA3, *_B70),
    "meta-llama/Llama-3.1-8B": _sized(LLAMA31, *_B8),
    "meta-llama/Llama-3.1-70B": _sized(LLAMA31, *_B70),
    "meta-llama/Llama-3.1-405B": _sized(LLAMA31, 126, 16384, 53248, 128, 8),
    "meta-llama/Llama-3.2-1B": _sized(LLAMA32, 16, 2048, 8192, 32, 8, head_dim=64),
    "meta-llama/Llama-3.2-3B": _sized(LLAMA32, 28, 3072, 8192, 24, 8, head_dim=128),
    "meta-llama/Llama-3.3-70B": _sized(LLAMA31, *_B70),
    "google/gemma-2b": _sized(GEMMA, 18, 2048, 16384, 8, 1),
    "google/gemma-7b": _sized(GEMMA, 28, 3072, 24576, 16, 16),
    "google/gemma-2-2b": _sized(GEMMA2, 26, 2304, 9216, 8, 4, head_dim=256, query_pre_attn_scalar=256),
    "google/gemma-2-9b": _sized(GEMMA2, 42, 3584, 14336, 16, 8, head_dim=256, query_pre_attn_scalar=256),
    "google/gemma-2-27b": _sized(GEMMA2, 46, 4608, 36864, 32, 16, head_dim=128, query_pre_attn_scalar=144),
    "google/gemma-3-1b": _sized(GEMMA3_1B, 26, 1152, 6912, 4, 1, head_dim=256),
    "google/gemma-3-4b": _sized(GEMMA3, 34, 2560, 10240, 8, 4, head_dim=256),
    "google/gemma-3-12b": _sized(GEMMA3, 48, 3840, 15360, 16, 8, head_dim=256),
    "google/gemma-3-27b": _sized(GEMMA3, 62, 5376, 21504, 32, 16, head_dim=128, query_pre_attn_scalar=168),
    "google/gemma-4-E2B": _sized(
        GEMMA4_E | {"layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7},
        *(35, 1536, 6144, 8, 1),
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    ),
    "google/gemma-4-E4B": _sized(GEMMA4_E, 42, 2560, 10240, 8, 2, num_kv_shared_layers=18),
    "google/gemma-4-12B": _sized(GEMMA4, 48, 3840, 15360, 16, 8, num_global_key_value_heads=1),
    "google/gemma-4-26B-A4B": _sized(
        GEMMA4 | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
        *(30, 2816, 2112, 16, 8),
        num_global_key_value_heads=2,
        use_bidirectional_attention="vision",
    ),
    "google/gemma-4-31B": _sized(
        GEMMA4, 60, 5376, 21504, 32, 16, num_global_key_value_heads=4, use_bidirectional_attention="vision"
    ),
    "meta-models/Muse-Glimmer-30B": MUSE_GLIMMER,
    "mistralai/Mistral-7B-v0.1": _sized(MISTRAL, *_B8, sliding_window=4096),
    "mistralai/Mistral-7B-v0.3": _sized(MISTRAL, *_B8, vocab_size=32768, rope_theta=1e6),
    "mistralai/Mistral-Nemo-Base-2407": _sized(MISTRAL_SMALL, 40, 5120, 14336, 32, 8, rope_theta=1e6),
    "mistralai/Mistral-Small-24B-Base-2501": _sized(MISTRAL_SMALL, 40, 5120, 32768, 32, 8, rope_theta=1e8),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": _sized(MISTRAL_SMALL, 40, 5120, 32768, 32, 8, rope_theta=1e9),
    "mistralai/Mixtral-8x7B-v0.1": _sized(MIXTRAL, *_B8),
    "mistralai/Mixtral-8x22B-v0.1": _sized(
        MIXTRAL, 56, 6144, 16384, 48, 8, vocab_size=32000, max_position_embeddings=65536
    ),
    "microsoft/Phi-3-mini-4k-instruct": _sized(
        PHI3, 32, 3072, 8192, 32, 32, vocab_size=32064, max_position_embeddings=4096, sliding_window=2047
    ),
    "microsoft/Phi-3-mini-128k-instruct": _sized(
        PHI3, 32, 3072, 8192, 32, 32, vocab_size=32064, max_position_embeddings=131072, sliding_window=262144
    ),
    "microsoft/Phi-4-mini-instruct": _sized(
        PHI3 | {"vocab_size": 200064, "max_position_embeddings": 131072, "sliding_window": 262144},
        *(32, 3072, 8192, 24, 8),
        tie_word_embeddings=True,
        partial_rotary_factor=0.75,
    ),
    "microsoft/phi-4": _sized(PHI3, 40, 5120, 17920, 40, 10, vocab_size=100352, rope_theta=250000.0),
    "openai/gpt-oss-20b": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "openai/gpt-oss-120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    "Qwen/Qwen2.5-0.5B": _sized(QWEN25, 24, 896, 4864, 14, 2, vocab_size=151936, tie_word_embeddings=True),
    "Qwen/Qwen2.5-1.5B": _sized(QWEN25, 28, 1536, 8960, 12, 2, vocab_size=151936, tie_word_embeddings=True),
    "Qwen/Qwen2.5-3B": _sized(QWEN25, 36, 2048, 11008, 16, 2, vocab_size=151936, tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B": _sized(QWEN25, 28, 3584, 18944, 28, 4, vocab_size=152064),
    "Qwen/Qwen2.5-14B": _sized(QWEN25, 48, 5120, 13824, 40, 8, vocab_size=152064),
    "Qwen/Qwen2.5-32B": _sized(QWEN25, 64, 5120, 27648, 40, 8, vocab_size=152064),
    "Qwen/Qwen2.5-72B": _sized(QWEN25, 80, 8192, 29568, 64, 8, vocab_size=152064),
    "Qwen/Qwen3-0.6B": _sized(QWEN3, 28, 1024, 3072, 16, 8, tie_word_embeddings=True),
    "Qwen/Qwen3-1.7B": _sized(QWEN3, 28, 2048, 6144, 16, 8, tie_word_embeddings=True),
    "Qwen/Qwen3-4B": _sized(QWEN3, 36, 2560, 9728, 32, 8, tie_word_embeddings=True),
    "Qwen/Qwen3-8B": _sized(QWEN3, 36, 4096, 12288, 32, 8),
    "Qwen/Qwen3-14B": _sized(QWEN3, 40, 5120, 17408, 40, 8),
    "Qwen/Qwen3-32B": _sized(QWEN3, 64, 5120, 25600, 64, 8),
    "Qwen/Qwen1.5-MoE-A2.7B": _sized(
        QWEN25 | {"model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4, "norm_topk_prob": False},
        *(24, 2048, 5632, 16, 16),
        vocab_size=151936,
        max_position_embeddings=8192,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    ),
    "Qwen/Qwen3.5-27B": _sized(QWEN35, 64, 5120, 17408, 24, 4, linear_num_value_heads=48),
    "Qwen/Qwen3.5-35B-A3B": QWEN35
    | {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048}
    | {"num_attention_heads": 16, "num_key_value_heads": 2, "moe_intermediate_size": 512, "num_experts": 256},
    "Qwen/Qwen3-VL-4B": _with_tower(_sized(QWEN3_VL, 36, 2560, 9728, 32, 8, tie_word_embeddings=True)),
    "Qwen/Qwen3-VL-8B": _with_tower(_sized(QWEN3_VL, 36, 4096, 12288, 32, 8)),
    "Qwen/Qwen3-30B-A3B": _sized(QWEN3_MOE, 48, 2048, 6144, 32, 4, num_experts=128, moe_intermediate_size=768),
    "Qwen/Qwen3-235B-A22B": _sized(QWEN3_MOE, 94, 4096, 12288, 64, 4, num_experts=128, moe_intermediate_size=1536),
    "Qwen/Qwen3-Coder-480B-A35B": _sized(
        QWEN3_MOE, 62, 6144, 8192, 96, 8, num_experts=160, moe_intermediate_size=2560, rope_theta=1e7
    ),
}
"""Base models by their hub id. Their tuned siblings have the same sizes."""
