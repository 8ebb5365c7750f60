"""Tiny random checkpoints in diffusers layout."""

import json
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
import transformers

Family = Literal["sd1", "sd2", "sdxl", "sd-turbo", "sdxl-turbo"]
"""Of UNets: see `tiny_transformers` for others."""

WORDS = [
    "a",
    "an",
    "and",
    "blue",
    "cat",
    "circle",
    "green",
    "of",
    "on",
    "one",
    "photo",
    "red",
    "small",
    "square",
    "the",
    "two",
    "white",
]
CONTEXT = 16  # tokens of a prompt
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}


def save(family: Family, folder: str | Path, seed: int = 0, dtype: str = "float32", **saving: Any) -> Path:
    """Make a checkpoint of one of the families; pictures are 32 x 32, or any multiple of 8.

    Args:
        saving: further arguments of diffusers' `save_pretrained`, such as variant="fp16".
    """
    torch.manual_seed(seed)
    folder = Path(folder)
    is_xl = family.startswith("sdxl")
    turbo = family.endswith("turbo")
    second = family in ("sd2", "sd-turbo")
    tokenizer = _tokenizer(folder / "tokenizer")
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "projection_dim": 24,
        "hidden_act": "gelu" if second else "quick_gelu",
    }
    unet = {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "cross_attention_dim": 32,
        "attention_head_dim": 4,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    if second:
        unet |= {"use_linear_projection": True, "attention_head_dim": [2, 4], "upcast_attention": True}
    parts: dict[str, Any] = {
        "tokenizer": tokenizer,
        "text_encoder": transformers.CLIPTextModel(transformers.CLIPTextConfig(**text)),
        "vae": diffusers.AutoencoderKL(
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            norm_num_groups=8,
            sample_size=32,
            scaling_factor=0.5,
        ),
        "scheduler": _scheduler(family, turbo),
    }
    if is_xl:
        wide = transformers.CLIPTextConfig(**text | {"hidden_size": 48, "hidden_act": "gelu"})
        parts["tokenizer_2"] = _tokenizer(folder / "tokenizer_2", pad="!")
        parts["text_encoder_2"] = transformers.CLIPTextModelWithProjection(wide)
        unet |= {
            "use_linear_projection": True,
            "attention_head_dim": [2, 4],
            "transformer_layers_per_block": [1, 2],
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 32 + 48,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 6 * 8 + 24,
        }
        pipeline = diffusers.StableDiffusionXLPipeline
    else:
        parts |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipeline = diffusers.StableDiffusionPipeline
    parts["unet"] = diffusers.UNet2DConditionModel(**unet)
    for module in parts.values():
        if isinstance(module, torch.nn.Module):
            shake(module)
            module.eval()
            if dtype != "float32":
                module.to(getattr(torch, dtype))
    pipeline(**parts).save_pretrained(folder, **saving)
    return folder


def _scheduler(family: Family, turbo: bool) -> Any:
    if turbo:
        return diffusers.EulerAncestralDiscreteScheduler(**BETAS, timestep_spacing="trailing", steps_offset=1)
    if family == "sdxl":
        return diffusers.EulerDiscreteScheduler(**BETAS, timestep_spacing="leading", steps_offset=1)
    prediction = "v_prediction" if family == "sd2" else "epsilon"
    return diffusers.DDIMScheduler(
        **BETAS, clip_sample=False, set_alpha_to_one=False, steps_offset=1, prediction_type=prediction
    )


def shake(module: torch.nn.Module) -> None:
    """Randomize norms and biases, and scale matrices to preserve a signal's size, so that zeros hide no mistake."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn_like(weight)
            if weight.ndim == 1:
                weight.copy_(0.1 * noise + (1.0 if name.endswith("weight") else 0.0))
            elif "embedding.weight" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * weight[0].numel() ** -0.5)


def _tokenizer(folder: Path, pad: str = "<|endoftext|>") -> Any:
    """A tokenizer that knows the letters and `WORDS`."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(33, 127)]
    vocabulary = [*letters, *(letter + "</w>" for letter in letters)]
    merges: list[str] = []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            merge = f"{parts[0]} {parts[1]}"
            parts = [parts[0] + parts[1], *parts[2:]]
            if parts[0] not in vocabulary:
                vocabulary.append(parts[0])
                merges.append(merge)
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return transformers.CLIPTokenizer.from_pretrained(folder, model_max_length=CONTEXT, pad_token=pad)
