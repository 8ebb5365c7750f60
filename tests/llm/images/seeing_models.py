"""Tiny random checkpoints with vision towers, as transformers writes them, and what transformers makes of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from apps.llm.api import PromptImage
from tests.llm.engine.tiny_models import GEMMA4, HIDDEN, QWEN35, SIZES, VOCAB

WORDS = 290
WRITTEN = "what is in this picture? the quick brown fox and the lazy dog are in the picture, and what colour are they. "
IMAGE, VIDEO, BEGIN, END, ROW_END, IMAGE_END = range(WORDS, WORDS + 6)
"""Tokens: what stands for an image's, and what is around them."""
MARKS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "[IMG_BREAK]", "[IMG_END]"]


def spelled(token: int) -> str | None:
    """A mark by its id."""
    return MARKS[token - IMAGE] if IMAGE <= token < IMAGE + len(MARKS) else None


SHOWN = MARKS[2], MARKS[0], MARKS[3]
"""An image in a chat; Gemma 3's template writes the first of them, Gemma 4's the second."""
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
PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "image_size": 64,
}
SIGLIP: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "image_size": 32,
}
GEMMA4_VISION: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 160,
}
PROCESSOR: dict[str, Any] = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.3],
}
GEMMAS4, QWENS3 = ("gemma4", "gemma4_e"), ("qwen3_vl", "qwen3_vl_long", "qwen3_vl_moe")
SLIDING, FULL = "sliding_attention", "full_attention"
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5", QWEN35),
    "qwen3_5_moe": ("Qwen3_5Moe", QWEN35 | MOE),
    "qwen3_vl": ("Qwen3VL", {"head_dim": 16}),
    "qwen3_vl_long": ("Qwen3VL", {"head_dim": 16}),  # as its card stretches it
    "qwen3_vl_moe": ("Qwen3VLMoe", {"head_dim": 16} | MOE | {"moe_intermediate_size": 24}),
    "qwen2_5_vl": ("Qwen2_5_VL", {"max_window_layers": 9}),
    "mistral3": ("Mistral3", {"model_type": "mistral", "head_dim": 16, "sliding_window": None}),
    # A window narrower than an image.
    "gemma3": (
        "Gemma3",
        {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 9, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "gemma4": ("Gemma4", GEMMA4 | {"sliding_window": 25, "use_bidirectional_attention": "vision"}),
    # As E2B and E4B: causal, and each layer has embeddings of its own, for images those of a token that is not 0.
    "gemma4_e": (
        "Gemma4",
        GEMMA4
        | {"attention_k_eq_v": False, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
        | {"pad_token_id": 100, "num_kv_shared_layers": 2, "use_bidirectional_attention": None},
    ),
}


def _config(family: str) -> transformers.PreTrainedConfig:
    kind, text = FAMILIES[family]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "mrope_section": [4, 4, 4]}
    if family == "mistral3":
        more: dict[str, Any] = {"vision_config": PIXTRAL, "image_token_index": IMAGE, "multimodal_projector_bias": True}
        more["tie_word_embeddings"] = False  # or the likeliest token would be the last one
    elif family == "gemma3":
        marks = {"image_token_index": IMAGE, "boi_token_index": BEGIN, "eoi_token_index": END}
        more = {"vision_config": SIGLIP, "mm_tokens_per_image": 16} | marks
    elif family in GEMMAS4:
        marks = {"image_token_id": IMAGE, "boi_token_id": BEGIN, "eoi_token_id": END}
        other = {"video_token_id": VIDEO, "audio_token_id": ROW_END, "audio_config": None}
        ways = {"standardize": family == "gemma4", "use_clipped_linears": family == "gemma4_e"}
        more = {"vision_config": GEMMA4_VISION | ways} | marks | other
    else:
        rope |= {"mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0} if family == "qwen2_5_vl" else {}
        text = text | {"rope_parameters": rope}
        marks = {"video_token_id": VIDEO, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
        windows = {"window_size": 16, "fullatt_block_indexes": [1], "hidden_act": "silu"}
        vision = VISION | (windows if family == "qwen2_5_vl" else {})
        if family in QWENS3:  # as its 4B's: three of its blocks
            rope |= {"mrope_section": [3, 3, 2], "partial_rotary_factor": 1.0}
            vision |= {"depth": 4, "deepstack_visual_indexes": [0, 2, 3]}
        if family == "qwen3_vl_long":
            rope |= {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
        more = {"vision_config": vision, "image_token_id": IMAGE, **marks}
    return getattr(transformers, f"{kind}Config")(text_config=SIZES | text, **more)


def make(family: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A float32 model in which every weight matters."""
    config = _config(family)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            plain = family in ("mistral3", "qwen2_5_vl", *GEMMAS4, *QWENS3) or any(
                each in name for each in (".visual.", "vision_tower.", "linear_attn")
            )
            if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "ln_pre.weight", "ln_q.weight")):
                weight.copy_(noise * 0.3 + (1.0 if plain else 0.0))
            elif name.endswith(("bias", "A_log", "conv1d.weight")):
                weight.copy_(noise * 0.5)
            elif name.endswith("experts.down_proj"):
                weight.copy_(noise * weight.shape[-1] ** -0.5)
            elif "pos_embed" in name or "position_embedding" in name:
                weight.copy_(noise)
            elif "embed_tokens" in name:  # Gemma's are the head, too: large, the likeliest token would be the last one
                weight.copy_(noise * (0.1 if family.startswith("gemma") else 1.0))
            else:
                weight.copy_(noise * weight[0].numel() ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("layer_scalar", "std_scale")):
                buffer.fill_(0.7)
            elif name.endswith("std_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=random))
            elif name.endswith(("_min", "_max")):  # narrow, but for outputs, whose lower bound is none
                buffer.fill_({"input_min": -1.5, "input_max": 1.2, "output_max": 0.9}.get(name.split(".")[-1], -np.inf))
    return model


def save(family: str, folder: Path) -> Path:
    """The model, its image processor and a tokenizer."""
    make(family).save_pretrained(folder)
    processor(family).save_pretrained(folder)
    save_tokenizer(folder, family)
    return folder


def with_larger_images(folder: Path) -> Path:
    """A Gemma 4's, whose images may have 280 tokens."""
    save("gemma4", folder)
    processor("gemma4", max_soft_tokens=280).save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, family: str = "qwen3_5") -> None:
    """A byte-level BPE with the marks of images, and a chat template with parts, as Qwen's and Gemma's have them."""
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
    shown = {"gemma3": SHOWN[0]} | dict.fromkeys(GEMMAS4, SHOWN[1])
    fast.chat_template = TEMPLATE.replace("".join(SHOWN), shown.get(family, "".join(SHOWN)))
    fast.save_pretrained(folder)


def processor(family: str = "qwen3_5", **changes: Any) -> Any:
    """Transformers' own, without torchvision."""
    if family == "mistral3":
        same = {name: PROCESSOR[name] for name in ("image_mean", "image_std")}
        return PixtralImageProcessorPil(**({"patch_size": 8, "size": {"longest_edge": 64}} | same | changes))
    if family == "gemma3":
        same = {name: PROCESSOR[name] for name in ("image_mean", "image_std")}
        return Gemma3ImageProcessorPil(**({"size": {"height": 32, "width": 32}} | same | changes))
    if family in GEMMAS4:
        return Gemma4ImageProcessorPil(**({"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70} | changes))
    return Qwen2VLImageProcessorPil(**(PROCESSOR | changes))


def scene(seed: int, width: int, height: int) -> Image.Image:
    """An image of noise and one rectangle."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), np.uint8)
    left, top = random.integers(0, width // 2), random.integers(0, height // 2)
    pixels[top : top + height // 2, left : left + width // 2] = random.integers(0, 256, 3)
    return Image.fromarray(pixels)


def prompt(
    images: Sequence[Image.Image], texts: Sequence[Sequence[int]], family: str = "qwen3_5", **changes: Any
) -> tuple[list[int], list[PromptImage]]:
    """Token ids of the texts with an image after each but the last, and the images as the engine takes them."""
    ids, placed = list(texts[0]), []
    for image, text in zip(images, texts[1:], strict=True):
        given = processor(family, **changes)(images=image, do_rescale=False, do_normalize=False)
        values = np.asarray(given["pixel_values"])
        if family in ("mistral3", "gemma3"):
            rows, columns = (size // 4 for size in values.shape[2:])
            squares = values.reshape(3, rows // 2, 2, 4, columns // 2, 2, 4).transpose(1, 4, 2, 5, 0, 3, 6)
        elif family in GEMMAS4:  # padded; of each patch its pixels, with their channels
            columns, rows = given["image_position_ids"][0].max(axis=0) + 1
            squares = values[0, : rows * columns].reshape(rows // 2, 2, columns // 2, 2, 4, 4, 3)
            squares = squares.transpose(0, 2, 1, 3, 6, 4, 5)
        else:
            _, rows, columns = given["image_grid_thw"][0]
            squares = values.reshape(len(values), 3, 2, -1)[:, :, 0]
        pixels, grid = squares.astype(np.uint8).tobytes(), (int(rows) // 2, int(columns) // 2)
        ids.append(BEGIN)
        placed.append(PromptImage(len(ids), grid, pixels, repr(grid).encode() + pixels[:64], int(family == "mistral3")))
        if family == "mistral3":  # source: PixtralProcessor.replace_image_token
            ids += ([IMAGE] * grid[1] + [ROW_END]) * (grid[0] - 1) + [IMAGE] * grid[1] + [IMAGE_END]
        else:
            ids += [IMAGE] * (grid[0] * grid[1])
        ids += [END, *text]
    return ids, placed


def inputs(images: Sequence[Image.Image], ids: Sequence[int], family: str) -> dict[str, Any]:
    """What transformers' model takes."""
    given = processor(family)(images=list(images), return_tensors="pt") if images else {}
    tokens = torch.tensor([list(ids)])
    kind = {"mistral3": None, "gemma3": "token_type_ids"}.get(family, "mm_token_type_ids")
    for unused in ("num_crops", "num_soft_tokens_per_image"):
        given.pop(unused, None)
    return {"input_ids": tokens, **({kind: (tokens == IMAGE).int()} if kind else {}), **given}


def greedy(model: Any, images: Sequence[Image.Image], ids: Sequence[int], count: int) -> list[int]:
    """Transformers' likeliest tokens after these."""
    return _generated(model, images, ids, count).sequences[0, len(ids) :].tolist()


def log_probabilities(model: Any, images: Sequence[Image.Image], ids: Sequence[int], count: int) -> np.ndarray:
    """Those of the likeliest tokens."""
    made = _generated(model, images, ids, count)
    every = torch.cat(made.logits).log_softmax(dim=-1)
    return every[range(count), made.sequences[0, len(ids) :]].numpy()


def _generated(model: Any, images: Sequence[Image.Image], ids: Sequence[int], count: int) -> Any:
    given = inputs(images, ids, model.config.model_type)
    many = {"max_new_tokens": count, "min_new_tokens": count}
    return model.generate(**given, **many, do_sample=False, output_logits=True, return_dict_in_generate=True)
