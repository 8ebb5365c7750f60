"""The parts of the demo model: a Stable Diffusion 1.x pipeline of a few million parameters.

It has the same classes and block types as the real models, only narrower, so whatever runs those runs this.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from tools.demo_models.pictures.scenes import PICTURE
from tools.demo_models.pictures.tokenizer import save_tokenizer


@dataclass(frozen=True)
class ModelConfig:
    """Sizes; the autoencoder halves the picture once less often than it has channels listed."""

    vae_channels: tuple[int, ...] = (16, 32, 64)
    unet_channels: tuple[int, ...] = (32, 64, 128)
    unet_heads: int = 4
    text_width: int = 128
    text_layers: int = 2
    text_heads: int = 4
    text_length: int = 32  # tokens of a prompt

    @property
    def latent(self) -> int:
        """Latents on a side."""
        return PICTURE // 2 ** (len(self.vae_channels) - 1)


def build_vae(config: ModelConfig) -> AutoencoderKL:
    """An untrained autoencoder."""
    levels = len(config.vae_channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=config.vae_channels,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=PICTURE,
        force_upcast=False,
    )


def build_unet(config: ModelConfig) -> UNet2DConditionModel:
    """An untrained denoiser. Attention, the expensive part, begins below the widest level."""
    levels = len(config.unet_channels)
    return UNet2DConditionModel(
        sample_size=config.latent,
        down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * (levels - 1),
        up_block_types=("CrossAttnUpBlock2D",) * (levels - 1) + ("UpBlock2D",),
        block_out_channels=config.unet_channels,
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=config.text_width,
        attention_head_dim=config.unet_heads,  # diffusers' name for it, but it counts heads
    )


def build_text_encoder(config: ModelConfig, tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """An untrained text encoder for the tokenizer."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.text_width,
            intermediate_size=4 * config.text_width,
            projection_dim=config.text_width,
            num_hidden_layers=config.text_layers,
            num_attention_heads=config.text_heads,
            max_position_embeddings=config.text_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_scheduler() -> DDIMScheduler:
    """Stable Diffusion's noise schedule, made to end in pure noise: otherwise no picture gets all black or white."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,  # diffusers expects it; no effect with trailing spacing
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
    )


def build_pipeline(
    vae: AutoencoderKL, unet: UNet2DConditionModel, text_encoder: CLIPTextModel, tokenizer: CLIPTokenizer
) -> StableDiffusionPipeline:
    """The parts as one pipeline, which prints no progress."""
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def save_pipeline(pipeline: StableDiffusionPipeline, folder: Path) -> None:
    """Writes the pipeline in half precision, in diffusers' layout. The pipeline itself is not changed."""
    parts = (copy.deepcopy(part) for part in (pipeline.vae, pipeline.unet, pipeline.text_encoder))
    build_pipeline(*(part.to("cpu", torch.float16) for part in parts), pipeline.tokenizer).save_pretrained(folder)
    save_tokenizer(pipeline.tokenizer, folder / "tokenizer")
    # Stable Diffusion's names, which transformers from 5 on reads but no longer writes.
    file = folder / "text_encoder" / "model.safetensors"
    weights = {"text_model." + name.removeprefix("text_model."): one for name, one in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    # If this stayed float16, transformers would compute in it while diffusers computes the rest in float32.
    file = folder / "text_encoder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "float32"}, indent=2) + "\n")


def load_pipeline(folder: Path | str, device: torch.device | str = "cpu") -> StableDiffusionPipeline:
    """The pipeline in `folder`, in float32, which prints no progress."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder).to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
