"""Random models of every family, small enough to compile in a second, and their torch reference."""

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB = 320  # 256 bytes, the special tokens and some merges
SMALL: dict[str, Any] = {  # engine settings under which few programs compile
    "dtype": "float32",
    "page_size": 16,
    "pages": 64,
    "max_batch_size": 8,
    "max_step_tokens": 16,
    "max_model_len": 128,
}
LAYERS, HIDDEN = 2, 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
THETA_5E5 = {"rope_type": "default", "rope_theta": 500000.0}
GEMMA4: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 40,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
}
QWEN35: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> transformers' class, what differs from SIZES
    "llama2": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": ("Llama", {"rope_parameters": THETA_5E5, "tie_word_embeddings": False}),
    "llama3.2": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 40, "num_hidden_layers": 3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "phi3": ("Phi3", {"sliding_window": 40, "pad_token_id": 0}),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "sliding_window": 40,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "swiglu_limit": 1.5,  # low, so that gates reach it
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        },
    ),
    "gemma": ("Gemma", {"head_dim": 32, "num_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "query_pre_attn_scalar": 24,
            "sliding_window": 40,
            "attn_logit_softcapping": 2.0,  # low, so that scores and logits reach it
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 24,
            "sliding_window": 40,
            "sliding_window_pattern": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma4": ("Gemma4Text", GEMMA4),
    "gemma4_e": (
        "Gemma4Text",
        GEMMA4
        | {"attention_k_eq_v": False, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
        | {"num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
        | {"layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full", "full")]},
    ),
    "gemma4_moe": (
        "Gemma4Text",
        GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32},
    ),
    "qwen3_next": (
        "Qwen3Next",
        QWEN35
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [1]}
        | {"shared_expert_intermediate_size": 48},
    ),
    "muse_glimmer": (
        "MuseGlimmer",
        {
            "head_dim": 32,
            "num_hidden_layers": 5,
            "sliding_window": 40,
            "pad_token_id": 0,
            "final_logit_softcapping": 1.0,  # low, so that logits reach it
            "rope_parameters": THETA_5E5,
            "rms_norm_eps": 0.05,
            "post_norm_eps": 0.3,  # these, so large that they can be told apart
        },
    ),
    "qwen3_5": ("Qwen3_5Text", QWEN35),
    "qwen3_5_moe": (
        "Qwen3_5MoeText",
        QWEN35
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 48},
    ),
}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}
BESIDE = {"MuseGlimmer": {"vision_config": VISION, "out_hidden_size": 128, "projector_hidden_size": 16}}
"""What the configs of classes with a vision tower have beside their text's; these have none for text alone."""


VARYING = "norm.weight", "norm_1.weight", "norm_2.weight", "layer_scalar", "router.scale", "per_expert_scale"
"""Parameters near one, or near zero in the first Gemmas."""


def config_of(family: str, **changes: Any) -> transformers.PreTrainedConfig:
    kind, differences = FAMILIES[family]
    text = SIZES | differences | changes
    return getattr(transformers, f"{kind}Config")(**({"text_config": text} | BESIDE[kind] if kind in BESIDE else text))


def make(family: str, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
    """A float32 model in which every weight matters: matrices keep the signal's size, norms and biases vary."""
    config = config_of(family, **changes)
    config._attn_implementation = "eager"  # the other implementations leave soft caps out
    with_tower = FAMILIES[family][0] in BESIDE
    auto = transformers.AutoModelForImageTextToText if with_tower else transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *_scalars(model)]:
            noise = torch.randn(weight.shape, generator=random)
            if name.endswith(VARYING):
                around_zero = ("gemma" in family and "gemma4" not in family) or (
                    family.startswith(("qwen3_5", "qwen3_next")) and "linear_attn" not in name
                )
                around_zero |= family == "muse_glimmer" and name.endswith("layernorm.weight")
                weight.copy_(noise * 0.3 + (0.0 if around_zero else 1.0))
            elif name.endswith("experts.down_proj"):  # Gemma 4's: of their width, not of the model's
                weight.copy_(noise * weight.shape[-1] ** -0.5)
            elif name.endswith("sinks"):
                weight.copy_(noise + 2.0)
            elif name.endswith(("bias", "A_log", "conv1d.weight")):
                weight.copy_(noise * 0.5)
            else:
                fan_in = HIDDEN if "embed" not in name else 1 if "gemma" not in family else HIDDEN
                weight.copy_(noise * fan_in**-0.5)
    return model


def _scalars(model: transformers.PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Gemma 4's, which are buffers."""
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]


def save(model: transformers.PreTrainedModel, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The reference: `[tokens, vocab]` float32 of one pass over the whole sequence."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    """Transformers' likeliest tokens after these."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return made[0, len(ids) :].tolist()


def save_tokenizer(folder: Path) -> None:
    """A byte-level BPE that knows a few words, <s> before every prompt, </s> as the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog; the days of the week " * 3], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(folder)


def xla_flags(devices: int) -> str:
    """That many pretended devices. What is compared between devices is compared whatever the code: compile quickly."""
    return f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"


def environment(**changes: str) -> dict[str, str]:
    """For a test that needs a process of its own: this one's environment, the repository importable."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | changes
