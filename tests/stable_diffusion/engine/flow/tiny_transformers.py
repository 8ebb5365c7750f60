"""Tiny random checkpoints of diffusion transformers in diffusers layout."""

from pathlib import Path
from typing import Any

import diffusers
import tokenizers
import torch
import transformers

from tests.stable_diffusion.engine.tiny_pictures import WORDS, shake

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def save_z_image(folder: str | Path, seed: int = 0, shift: dict[str, Any] | None = None, causal: bool = True) -> Path:
    """Z-Image: pictures are any multiple of 4, because its tiny autoencoder halves once.

    Args:
        shift: further fields of the scheduler.
        causal: whether the text encoder was saved with its head, as the published one is.
    """
    torch.manual_seed(seed)
    folder = Path(folder)
    tokenizer = _tokenizer()
    text = transformers.Qwen3Config(
        vocab_size=len(tokenizer) + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    parts: dict[str, Any] = {
        "text_encoder": (transformers.Qwen3ForCausalLM if causal else transformers.Qwen3Model)(text),
        "transformer": diffusers.ZImageTransformer2DModel(
            in_channels=4,
            dim=48,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=3,
            n_kv_heads=3,
            cap_feat_dim=32,
            axes_dims=[4, 6, 6],
            axes_lens=[1024, 64, 64],
        ),
        "vae": diffusers.AutoencoderKL(
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            norm_num_groups=8,
            latent_channels=4,
            scaling_factor=0.5,
            shift_factor=0.2,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
    }
    for module in parts.values():
        shake(module)
        module.eval()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**shift or {"shift": 3.0})
    diffusers.ZImagePipeline(**parts, tokenizer=tokenizer, scheduler=scheduler).save_pretrained(folder)
    return folder


def save_klein(folder: str | Path, seed: int = 0, distilled: bool = False, **vae: Any) -> Path:
    """FLUX.2 klein: pictures are any multiple of 4, because its tiny autoencoder halves once."""
    torch.manual_seed(seed)
    folder = Path(folder)
    tokenizer = _tokenizer()
    text = transformers.Qwen3Config(
        vocab_size=len(tokenizer) + 3,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=29,  # of which it reads 9, 18 and 27
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    parts: dict[str, Any] = {
        "text_encoder": transformers.Qwen3ForCausalLM(text),
        "transformer": diffusers.Flux2Transformer2DModel(
            in_channels=16,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=3,
            joint_attention_dim=48,
            timestep_guidance_channels=32,
            axes_dims_rope=(2, 6, 6, 2),
            guidance_embeds=False,
        ),
        "vae": diffusers.AutoencoderKLFlux2(
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            norm_num_groups=8,
            latent_channels=4,
            **vae,
        ),
    }
    for module in parts.values():
        shake(module)
        module.eval()
    norm = parts["vae"].bn
    norm.running_mean.copy_(torch.randn(norm.running_mean.shape))
    norm.running_var.copy_(torch.rand(norm.running_var.shape) + 0.5)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
    pipeline = diffusers.Flux2KleinPipeline(**parts, tokenizer=tokenizer, scheduler=scheduler, is_distilled=distilled)
    pipeline.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """A byte-level tokenizer with Qwen's special tokens and template, and `WORDS`."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([" ".join(WORDS)], vocab_size=320, min_frequency=1)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.chat_template = TEMPLATE
    return fast
