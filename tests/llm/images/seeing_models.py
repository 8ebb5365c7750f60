"""Tiny random checkpoints with vision towers, as transformers writes them, and what transformers makes of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from apps.llm.api import PromptImage
from tests.llm.engine.tiny_models import HIDDEN, QWEN35, SIZES

WORDS = 290
WRITTEN = "what is in this picture? the quick brown fox and the lazy dog are in the picture, and what colour are they. "
IMAGE, VIDEO, BEGIN, END = range(WORDS, WORDS + 4)
"""Tokens: what stands for an image's, and what is around them."""
MARKS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
TEMPLATE = """
{%- macro shown(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}[{{ m.role }}] {{ shown(m.content) }}
{% endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 36,
}
PROCESSOR: dict[str, Any] = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.3],
}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5", QWEN35),
    "qwen3_5_moe": ("Qwen3_5Moe", QWEN35 | MOE),
}


def make(family: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A float32 model in which every weight matters."""
    kind, text = FAMILIES[family]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "mrope_section": [4, 4, 4]}
    config = getattr(transformers, f"{kind}Config")(
        text_config=SIZES | text | {"rope_parameters": rope},
        vision_config=VISION,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=BEGIN,
        vision_end_token_id=END,
    )
    config._attn_implementation = "eager"
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            tower = ".visual." in name
            if name.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
                weight.copy_(noise * 0.3 + (1.0 if tower or "linear_attn" in name else 0.0))
            elif name.endswith(("bias", "A_log", "conv1d.weight")):
                weight.copy_(noise * 0.5)
            elif name.endswith("experts.down_proj"):
                weight.copy_(noise * weight.shape[-1] ** -0.5)
            elif "pos_embed" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * (1.0 if "embed_tokens" in name else weight[0].numel() ** -0.5))
    return model


def save(family: str, folder: Path) -> Path:
    """The model, its image processor and a tokenizer."""
    make(family).save_pretrained(folder)
    processor().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A byte-level BPE with the marks of images, and a chat template with parts, as Qwen's has them."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WRITTEN * 3], trainer)
    assert tokenizer.add_special_tokens(MARKS) == len(MARKS) and tokenizer.token_to_id(MARKS[0]) == IMAGE
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def processor(**changes: Any) -> Qwen2VLImageProcessorPil:
    """Transformers' own, without torchvision."""
    return Qwen2VLImageProcessorPil(**(PROCESSOR | changes))


def scene(seed: int, width: int, height: int) -> Image.Image:
    """An image of noise and one rectangle."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), np.uint8)
    left, top = random.integers(0, width // 2), random.integers(0, height // 2)
    pixels[top : top + height // 2, left : left + width // 2] = random.integers(0, 256, 3)
    return Image.fromarray(pixels)


def prompt(images: Sequence[Image.Image], texts: Sequence[Sequence[int]]) -> tuple[list[int], list[PromptImage]]:
    """Token ids of the texts with an image after each but the last, and the images as the engine takes them."""
    ids, placed = list(texts[0]), []
    for image, text in zip(images, texts[1:], strict=True):
        given = processor()(images=image, do_rescale=False, do_normalize=False)
        (_, rows, columns), patches = given["image_grid_thw"][0], np.asarray(given["pixel_values"])
        pixels = patches.reshape(len(patches), 3, 2, -1)[:, :, 0].astype(np.uint8).tobytes()
        ids.append(BEGIN)
        grid = int(rows) // 2, int(columns) // 2
        placed.append(PromptImage(len(ids), grid, pixels, repr(grid).encode() + pixels[:64]))
        ids += [IMAGE] * placed[-1].tokens + [END, *text]
    return ids, placed


def inputs(images: Sequence[Image.Image], ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """What transformers' model takes."""
    given = processor()(images=list(images), return_tensors="pt") if images else {}
    tokens = torch.tensor([list(ids)])
    return {"input_ids": tokens, "mm_token_type_ids": (tokens == IMAGE).int(), **given}


def greedy(model: Any, images: Sequence[Image.Image], ids: Sequence[int], count: int) -> list[int]:
    """Transformers' likeliest tokens after these."""
    made = model.generate(**inputs(images, ids), do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return made[0, len(ids) :].tolist()
