"""Random LoRAs for the tiny checkpoints, written as trainers write them."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import safetensors.torch
import torch

KOHYA = {"text_encoder": "lora_te1", "text_encoder_2": "lora_te2", "unet": "lora_unet"}
XL_BLOCKS = {
    "conv_in": "input_blocks.0.0",
    "down_blocks.0.resnets.0": "input_blocks.1.0",
    "down_blocks.0.downsamplers.0.conv": "input_blocks.2.0.op",
    "down_blocks.1.resnets.0": "input_blocks.3.0",
    "down_blocks.1.attentions.0": "input_blocks.3.1",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
    "up_blocks.0.resnets.0": "output_blocks.0.0",
    "up_blocks.0.attentions.0": "output_blocks.0.1",
    "up_blocks.0.resnets.1": "output_blocks.1.0",
    "up_blocks.0.attentions.1": "output_blocks.1.1",
    "up_blocks.0.upsamplers.0.conv": "output_blocks.1.2.conv",
    "up_blocks.1.resnets.0": "output_blocks.2.0",
    "up_blocks.1.resnets.1": "output_blocks.3.0",
    "conv_out": "out.2",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv1": "in_layers.2",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
"""kohya trains XL on a UNet with CompVis' names; of the tiny checkpoint's blocks and layers these."""

Tensors = dict[str, torch.Tensor]
Matrices = dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor, float]]
"""By component and layer: down, up and alpha."""


@cache
def modules(folder: Path) -> dict[str, torch.nn.Module]:
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    return {name: getattr(pipeline, name) for name in KOHYA if getattr(pipeline, name, None) is not None}


def every_layer(component: str, layer: str) -> bool:
    return True


def attention(component: str, layer: str) -> bool:
    """What kohya's and diffusers' trainers change by default."""
    return "attn" in layer and layer.rpartition(".")[2] != "processor"


def draw(
    folder: Path, seed: int, rank: int, alpha: float, takes: Callable[[str, str], bool] = every_layer, size: float = 0.5
) -> Matrices:
    """Random matrices, whose sums are about as large as the layers' own times `size`."""
    random, found = torch.Generator().manual_seed(seed), {}
    for component, module in modules(folder).items():
        for name, layer in module.named_modules():
            if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d) and takes(component, name):
                out, *inputs = layer.weight.shape
                down = torch.randn((rank, *inputs), generator=random) * layer.weight[0].numel() ** -0.5
                up = torch.randn((out, rank, *(1 for _ in inputs[1:])), generator=random) * rank**-0.5 * size
                found[component, name] = down, up * rank / alpha, alpha
    return found


def kohya(matrices: Matrices, is_xl: bool = False) -> Tensors:
    found: Tensors = {}
    for (component, layer), (down, up, alpha) in matrices.items():
        prefix = KOHYA[component] if is_xl or component == "unet" else "lora_te"
        name = _as_compvis(layer) if is_xl and component == "unet" else layer
        if component != "unet" and layer != "text_projection":  # as transformers before 5.0, which trainers have
            name = f"text_model.{layer.removeprefix('text_model.')}"
        name = f"{prefix}_{name.replace('.', '_')}"
        found |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(alpha)}
    return found


def _as_compvis(layer: str) -> str:
    block = next(block for block in XL_BLOCKS if layer == block or layer.startswith(f"{block}."))
    rest = layer.removeprefix(block).removeprefix(".")
    first, _, last = rest.partition(".")
    rest = ".".join(filter(None, (XL_BLOCKS.get(first, first), last))) if "resnets" in block else rest
    return ".".join(filter(None, (XL_BLOCKS[block], rest)))


def peft(matrices: Matrices) -> Tensors:
    """As diffusers' `save_lora_weights`, with alpha in the matrices."""
    found: Tensors = {}
    for (component, layer), (down, up, alpha) in matrices.items():
        found[f"{component}.{layer}.lora_A.weight"] = down
        found[f"{component}.{layer}.lora_B.weight"] = up * alpha / len(down)
    return found


def older(matrices: Matrices) -> Tensors:
    """As diffusers wrote a UNet's attention before PEFT."""
    found: Tensors = {}
    for (component, layer), (down, up, alpha) in matrices.items():
        path, _, last = layer.removesuffix(".0").rpartition(".")
        name = f"{component}.{path}.processor.{last}_lora"
        found |= {f"{name}.down.weight": down, f"{name}.up.weight": up * alpha / len(down)}
    return found


def write(path: Path, tensors: Tensors, **metadata: Any) -> Path:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    safetensors.torch.save_file({name: each.contiguous() for name, each in tensors.items()}, path, texts)
    return path


def layers_of(matrices: Matrices) -> Iterable[str]:
    return (f"{component}.{layer}" for component, layer in matrices)
