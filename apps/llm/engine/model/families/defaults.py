"""What a config.json leaves out: the value that each field has then, by its `model_type`.

`save_pretrained` leaves out what equals the default of transformers' config class, and so do files on the hub. These
are those classes' defaults (transformers 5.24), of the fields that the decoder asks for. Computed defaults, such as
head_dim or layer_types, are where the field is read.
"""

from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]

LLAMA: Fields = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
}
MISTRAL: Fields = LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
QWEN2: Fields = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,  # with use_sliding_window
    "max_window_layers": 28,
}
QWEN2_MOE: Fields = QWEN2 | {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "qkv_bias": True,
}
QWEN3_MOE: Fields = QWEN2 | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
GEMMA: Fields = {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
GEMMA2: Fields = {name: value for name, value in GEMMA.items() if name != "hidden_act"} | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: Fields = GEMMA2 | {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
GEMMA4: Fields = GEMMA3 | {
    "vocab_size": 262_144,
    "num_hidden_layers": 30,
    "sliding_window": 512,
    "global_head_dim": 512,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}
GEMMA4_UNIFIED: Fields = GEMMA4 | {
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}
QWEN35: Fields = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DEFAULTS: Mapping[str, Fields] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MISTRAL
    | {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_experts": 8,
    },
    "phi3": LLAMA
    | {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 32000,
    },
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN2 | {"head_dim": 128},
    "qwen3_moe": QWEN3_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4_UNIFIED,
    "muse_glimmer_text": {
        "vocab_size": 202_048,
        "hidden_size": 6656,
        "intermediate_size": 19968,
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_activation": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "post_norm_eps": 1e-8,
        "eos_token_id": 200_001,
        "sliding_window": 2048,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 20.0,
    },
    "qwen2_5_vl_text": QWEN2
    | {
        "vocab_size": 152_064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_window_layers": 80,
        "eos_token_id": 151_645,
        "rope_theta": 1e6,
    },
    "qwen3_vl_text": QWEN2 | {"head_dim": 128, "max_position_embeddings": 128_000, "rope_theta": 500_000.0},
    "qwen3_vl_moe_text": QWEN2_MOE
    | {
        "max_position_embeddings": 128_000,
        "num_experts_per_tok": 4,
        "rope_theta": 500_000.0,
    },
    "qwen3_5_text": QWEN35,
    "qwen3_next": QWEN35
    | {
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
        "norm_topk_prob": True,
    },
    "qwen3_5_moe_text": {name: value for name, value in QWEN35.items() if name != "intermediate_size"}
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    },
    "gpt_oss": {
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "attention_bias": True,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
}
MISTRAL3: Fields = {
    "model_type": "mistral",
    "vocab_size": 131_072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e9,
    "sliding_window": None,
}
"""Mistral3Config's decoder where the file does not describe it at all."""


def completed(config: Mapping[str, Any], model_type: str) -> Fields:
    """A decoder's config with the fields that it leaves out. A null says 'none', but of rope_parameters 'the usual'."""
    given = {name: value for name, value in config.items() if value is not None or name != "rope_parameters"}
    return DEFAULTS[model_type] | given
