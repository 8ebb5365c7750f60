"""Configs of the published models, for planning without access to a checkpoint: offline, gated, in a mounted bucket.

The fields are those of each component's config.json on the Hugging Face hub, as far as the programs ask for them.
"""

from typing import Any

from ray_configs.tpu import TpuSlice

Configs = dict[str, dict[str, Any]]
"""Component -> its config."""

CROSS, PLAIN = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D"), ("DownBlock2D", "UpBlock2D")

VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32}
CLIP_L = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "projection_dim": 768,
}
CLIP_H = CLIP_L | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 23,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
}
CLIP_G = CLIP_L | {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "hidden_act": "gelu",
    "projection_dim": 1280,
}


def _unet(levels: tuple[bool, ...], width: int, **more: Any) -> dict[str, Any]:
    """A UNet's config. `levels`: whether each resolution has attention, from the finest."""
    return {
        "block_out_channels": [320, 640, 1280, 1280][: len(levels)],
        "down_block_types": [CROSS[0] if attends else PLAIN[0] for attends in levels],
        "up_block_types": [CROSS[1] if attends else PLAIN[1] for attends in reversed(levels)],
        "layers_per_block": 2,
        "cross_attention_dim": width,
        **more,
    }


ONE: Configs = {
    "text_encoder": CLIP_L,
    "unet": _unet((True, True, True, False), 768, attention_head_dim=8),
    "vae": VAE,
}
TWO: Configs = {
    "text_encoder": CLIP_H,
    "unet": _unet((True, True, True, False), 1024, attention_head_dim=[5, 10, 20, 20], use_linear_projection=True),
    "vae": VAE,
}
XL: Configs = {
    "text_encoder": CLIP_L,
    "text_encoder_2": CLIP_G,
    "unet": _unet(
        (False, True, True),
        2048,
        attention_head_dim=[5, 10, 20],
        transformer_layers_per_block=[1, 2, 10],
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    ),
    "vae": VAE | {"scaling_factor": 0.13025},
}

QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
Z_IMAGE: Configs = {
    "text_encoder": QWEN3_4B,
    "transformer": {
        "in_channels": 16,
        "dim": 3840,
        "n_layers": 30,
        "n_refiner_layers": 2,
        "n_heads": 30,
        "n_kv_heads": 30,
        "cap_feat_dim": 2560,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1024, 512, 512],
    },
    "vae": VAE
    | {
        "latent_channels": 16,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    },
}

KLEIN_4B: Configs = {
    "text_encoder": QWEN3_4B,
    "transformer": {
        "_class_name": "Flux2Transformer2DModel",
        "in_channels": 128,
        "num_layers": 5,
        "num_single_layers": 20,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "joint_attention_dim": 7680,
        "axes_dims_rope": [32, 32, 32, 32],
        "guidance_embeds": False,
    },
    "vae": VAE | {"_class_name": "AutoencoderKLFlux2", "latent_channels": 32},
}
"""Sources: the defaults of Flux2Transformer2DModel and AutoencoderKLFlux2 in diffusers, and mflux' model_config.py."""

MODELS: dict[str, Configs] = {
    "CompVis/stable-diffusion-v1-4": ONE,
    "runwayml/stable-diffusion-v1-5": ONE,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": ONE,
    "SimianLuo/LCM_Dreamshaper_v7": ONE,
    "stabilityai/stable-diffusion-2-base": TWO,
    "stabilityai/stable-diffusion-2": TWO,
    "stabilityai/stable-diffusion-2-1-base": TWO,
    "stabilityai/stable-diffusion-2-1": TWO,
    "stabilityai/sd-turbo": TWO,
    "stabilityai/stable-diffusion-xl-base-1.0": XL,
    "stabilityai/sdxl-turbo": XL,
    "Tongyi-MAI/Z-Image-Turbo": Z_IMAGE,
    "black-forest-labs/FLUX.2-klein-4B": KLEIN_4B,
    "black-forest-labs/FLUX.2-klein-base-4B": KLEIN_4B,
}

RECORDS = {"v5e": 0.438, "v6e": 1.360}
"""Pictures/s of a chip of stable-diffusion-xl-base-1.0 at 1024x1024 in 20 steps, by generation, on four chips.

MLPerf Inference v4.1, closed, offline: github.com/mlcommons/inference_results_v4.1, closed/Google/results.
"""

_BY_NAME = {name.rsplit("/", 1)[-1].lower(): name for name in MODELS}


def find(model: str) -> str | None:
    """The entry of MODELS that the last part of a hub id, folder or URL names, or None."""
    return _BY_NAME.get(model.rstrip("/").rsplit("/", 1)[-1].lower())


def record(model: str, size: str, steps: int, slice: TpuSlice) -> float | None:
    """What MLPerf measured for exactly this: pictures/s of a chip."""
    same = find(model) == "stabilityai/stable-diffusion-xl-base-1.0" and size == "1024x1024" and steps == 20
    return RECORDS.get(slice.generation) if same else None
