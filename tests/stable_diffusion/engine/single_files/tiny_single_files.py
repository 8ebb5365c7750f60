"""Tiny random checkpoints in a single file, with tensors named as Stability's are, and the same in diffusers' layout.

The names here are written once more, from diffusers' layout on, so that a mistake of the engine's tables shows; and
diffusers' own `from_single_file` reads these files in the tests, so that one of this file's shows too.
"""

from pathlib import Path
from typing import Any, Literal

import diffusers
import safetensors.torch
import torch
import transformers

from tests.stable_diffusion.engine.tiny_pictures import BETAS, _tokenizer, shake

Family = Literal["sd1", "sd2", "sdxl"]
HIDDEN = {"sd1": 64, "sd2": 128, "sdxl": 64}
RESNET = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
          "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}  # fmt: skip
MIDDLE = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
OPEN_CLIP = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
             "self_attn.out_proj": "attn.out_proj"}  # fmt: skip


def pipeline(family: Family, folder: Path, seed: int = 0) -> Any:
    """A pipeline whose widths are multiples of what these models fix: 32 groups, heads of 64, 8 heads in 1.x."""
    torch.manual_seed(seed)
    is_xl = family == "sdxl"
    tokenizer = _tokenizer(folder / "tokenizer", **({"pad": "!"} if family == "sd2" else {}))
    text = {
        "vocab_size": len(tokenizer),
        "intermediate_size": 48,
        "max_position_embeddings": 16,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    own = transformers.CLIPTextConfig(
        hidden_size=HIDDEN[family],
        num_attention_heads=HIDDEN[family] // 64,
        num_hidden_layers=2,
        projection_dim=HIDDEN[family],
        hidden_act="gelu" if family == "sd2" else "quick_gelu",
        **text,
    )
    unet: dict[str, Any] = {
        "sample_size": 16,
        "block_out_channels": (64, 128),
        "layers_per_block": 2,
        "cross_attention_dim": HIDDEN[family],
        "attention_head_dim": 8 if family == "sd1" else (1, 2),
        "use_linear_projection": family != "sd1",
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    parts: dict[str, Any] = {
        "tokenizer": tokenizer,
        "text_encoder": transformers.CLIPTextModel(own),
        "vae": diffusers.AutoencoderKL(
            block_out_channels=(32, 64),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=2,
            sample_size=32,
            scaling_factor=0.13025 if is_xl else 0.18215,
        ),
    }
    steps = {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}
    if is_xl:
        wide = transformers.CLIPTextConfig(
            hidden_size=128, num_attention_heads=2, num_hidden_layers=10, projection_dim=128, hidden_act="gelu", **text
        )
        parts["tokenizer_2"] = _tokenizer(folder / "tokenizer_2", pad="!")
        parts["text_encoder_2"] = transformers.CLIPTextModelWithProjection(wide)
        parts["scheduler"] = diffusers.EulerDiscreteScheduler(**BETAS, timestep_spacing="leading", steps_offset=1)
        unet |= {
            "transformer_layers_per_block": (1, 2),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 64 + 128,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 6 * 8 + 128,
        }
        kind = diffusers.StableDiffusionXLPipeline
    else:
        predicts = "v_prediction" if family == "sd2" else "epsilon"
        parts["scheduler"] = diffusers.DDIMScheduler(**BETAS, **steps, prediction_type=predicts)
        parts |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        kind = diffusers.StableDiffusionPipeline
    parts["unet"] = diffusers.UNet2DConditionModel(**unet)
    for module in parts.values():
        if isinstance(module, torch.nn.Module):
            shake(module)
            module.eval()
    made = kind(**parts)
    made.save_pretrained(folder)
    return made


def single_file(pipe: Any, path: Path, extra: dict[str, torch.Tensor] | None = None, **metadata: str) -> Path:
    """The same weights in a file. With what such files carry about: EMA weights, position ids, schedules."""
    is_xl = hasattr(pipe, "text_encoder_2")
    tensors = {f"model.diffusion_model.{name}": each for name, each in _unet(pipe.unet).items()}
    tensors |= {f"first_stage_model.{name}": each for name, each in _vae(pipe.vae).items()}
    first = {f"text_model.{name.removeprefix('text_model.')}": t for name, t in pipe.text_encoder.state_dict().items()}
    if is_xl:
        tensors |= {f"conditioner.embedders.0.transformer.{name}": each for name, each in first.items()}
        second = _open_clip(pipe.text_encoder_2, [])
        tensors |= {f"conditioner.embedders.1.model.{name}": each for name, each in second.items()}
    elif pipe.unet.config.use_linear_projection:
        last = pipe.text_encoder.config.num_hidden_layers
        again = {f"encoder.layers.{last}.{end}": torch.full(each.shape, 9.0) for end, each in _last_layer(pipe).items()}
        tensors |= {f"cond_stage_model.model.{name}": t for name, t in _open_clip(pipe.text_encoder, again).items()}
        tensors["cond_stage_model.model.logit_scale"] = torch.ones(())
        tensors["cond_stage_model.model.text_projection"] = torch.full((128, 128), 9.0)
    else:
        tensors |= {f"cond_stage_model.transformer.{name}": each for name, each in first.items()}
        tensors["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(16)[None]
    tensors["model_ema.decay"] = torch.ones(())
    tensors |= {"alphas_cumprod": torch.rand(1000), "betas": torch.rand(1000)}
    tensors |= extra or {}
    safetensors.torch.save_file({name: each.contiguous() for name, each in tensors.items()}, path, metadata or None)
    return path


def _last_layer(pipe: Any) -> dict[str, torch.Tensor]:
    """Of the layer that 2.x does not run."""
    named = {name.removeprefix("text_model."): each for name, each in pipe.text_encoder.state_dict().items()}
    return {name.split(".", 3)[3]: each for name, each in named.items() if name.startswith("encoder.layers.0.")}


def _unet(unet: Any) -> dict[str, torch.Tensor]:
    """`UNetModel` of CompVis' ldm/modules/diffusionmodules/openaimodel.py: blocks are numbered one after the other."""
    arch, resnets = unet.config, unet.config.layers_per_block
    levels, places, n = len(arch.block_out_channels), {}, 1
    for i in range(levels):
        for j in range(resnets):
            places[f"down_blocks.{i}.resnets.{j}"] = f"input_blocks.{n + j}.0"
            places[f"down_blocks.{i}.attentions.{j}"] = f"input_blocks.{n + j}.1"
        places[f"down_blocks.{i}.downsamplers.0.conv"] = f"input_blocks.{n + resnets}.0.op"
        n += resnets + 1
    places |= {"mid_block.resnets.0": "middle_block.0", "mid_block.resnets.1": "middle_block.2"}
    places["mid_block.attentions.0"] = "middle_block.1"
    for i in range(levels):
        attends = "CrossAttn" in arch.up_block_types[i]
        for j in range(resnets + 1):
            n = i * (resnets + 1) + j
            places[f"up_blocks.{i}.resnets.{j}"] = f"output_blocks.{n}.0"
            places[f"up_blocks.{i}.attentions.{j}"] = f"output_blocks.{n}.1"
        places[f"up_blocks.{i}.upsamplers.0"] = f"output_blocks.{(i + 1) * (resnets + 1) - 1}.{2 if attends else 1}"
    places |= {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2"}
    places |= {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}
    places |= {"conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}
    found = {}
    for name, tensor in unet.state_dict().items():
        place = next(each for each in places if name.startswith(f"{each}."))
        rest = name.removeprefix(place)
        if ".resnets." in place:
            layer, end = rest[1:].rsplit(".", 1)
            rest = f".{RESNET[layer]}.{end}"
        found[places[place] + rest] = tensor
    return found


def _vae(vae: Any) -> dict[str, torch.Tensor]:
    """`Encoder` and `Decoder` of CompVis' ldm/modules/diffusionmodules/model.py."""
    last, found = len(vae.config.block_out_channels) - 1, {}
    for name, tensor in vae.state_dict().items():
        parts = name.split(".")
        if parts[1].endswith("_blocks"):
            way = parts[1].removesuffix("_blocks")
            level = int(parts[2]) if way == "down" else last - int(parts[2])
            place = f"{parts[0]}.{way}.{level}"
            rest = ".".join(parts[5:])
            name = f"{place}.block.{parts[4]}.{rest}" if parts[3] == "resnets" else f"{place}.{parts[3][:-2]}.{rest}"
        elif parts[1] == "mid_block":
            rest = ".".join(parts[4:])
            if parts[2] == "resnets":
                name = f"{parts[0]}.mid.block_{int(parts[3]) + 1}.{rest}"
            else:
                layer, end = rest.rsplit(".", 1)
                name = f"{parts[0]}.mid.attn_1.{MIDDLE[layer]}.{end}"
                tensor = tensor[..., None, None] if tensor.ndim == 2 else tensor
        name = name.replace("conv_shortcut", "nin_shortcut").replace("conv_norm_out", "norm_out")
        found[name] = tensor
    return found


def _open_clip(encoder: Any, more: Any) -> dict[str, torch.Tensor]:
    """`TextTransformer` of OpenCLIP's transformer.py: q, k and v in one matrix."""
    named = {name.removeprefix("text_model."): each for name, each in encoder.state_dict().items()} | dict(more)
    found, fused = {}, {}
    for name, tensor in named.items():
        if name == "text_projection.weight":
            found["text_projection"] = tensor.T
        elif name.startswith("encoder.layers."):
            _, _, number, rest = name.split(".", 3)
            layer, end = rest.rsplit(".", 1)
            if layer in OPEN_CLIP:
                found[f"transformer.resblocks.{number}.{OPEN_CLIP[layer]}.{end}"] = tensor
            else:
                fused.setdefault(f"transformer.resblocks.{number}.attn.in_proj_{end}", {})[layer[-6]] = tensor
        elif name.startswith("embeddings.position_embedding"):
            found["positional_embedding"] = tensor
        elif name.startswith("embeddings.token_embedding"):
            found["token_embedding.weight"] = tensor
        elif name.startswith("final_layer_norm"):
            found[name.replace("final_layer_norm", "ln_final")] = tensor
    return found | {name: torch.cat([each[letter] for letter in "qkv"]) for name, each in fused.items()}
