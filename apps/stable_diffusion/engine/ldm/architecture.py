"""What a single file's tensors say of its networks, as the configs of diffusers' layout.

The file has no configs. Shapes give all but a few numbers, which CompVis' and Stability's code has fixed: groups of
norms, dimensions of heads, activations, and the autoencoder's scale.
"""

from collections.abc import Mapping
from typing import Any

from apps.arrays.model_folder import CheckpointError, TensorEntry
from apps.stable_diffusion.engine.model.pipelines import PLAIN, XL, PipelineKind

Entries = Mapping[str, TensorEntry]
Config = dict[str, Any]

UNET, VAE = "model.diffusion_model.", "first_stage_model."
CLIP_L, OPEN_CLIP = "cond_stage_model.transformer.", "cond_stage_model.model."
XL_CLIP_L, XL_OPEN_CLIP = "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."
GROUPS, HEAD_DIM, HEADS = 32, 64, 8
"""Groups of every norm; dimensions of a head, but heads of 1.x's UNet."""
OTHERS = {
    "conditioner.embedders.0.model.": "an XL refiner, which is not served alone",
    f"{UNET}joint_blocks.": "Stable Diffusion 3",
    f"{UNET}double_blocks.": "FLUX",
    f"{UNET}layers.": "Z-Image: its folder in diffusers' layout is served",
    "double_blocks.": "FLUX",
    "joint_blocks.": "Stable Diffusion 3",
    "lora_unet_": "a LoRA: name it in loras",
    "lora_te": "a LoRA: name it in loras",
    "control_model.": "a ControlNet: name it in controlnets",
    "edm_": "Playground 2.5",
}
"""How keys of other models begin."""


def prefixes(where: str, entries: Entries, with_vae: bool) -> tuple[PipelineKind, dict[str, str]]:
    """The kind of model, and how the keys of each component begin.

    Raises:
        CheckpointError: it is of another kind, or a component is missing.
    """
    for prefix, what in OTHERS.items():
        if _has(entries, prefix):
            raise CheckpointError(f"{where} is {what}; served are Stable Diffusion 1.x, 2.x and XL")
    if _has(entries, XL_OPEN_CLIP):
        kind, texts = XL, {"text_encoder": XL_CLIP_L, "text_encoder_2": XL_OPEN_CLIP}
    else:
        kind, texts = PLAIN, {"text_encoder": OPEN_CLIP if _has(entries, OPEN_CLIP) else CLIP_L}
    found = texts | {"unet": UNET} | ({"vae": VAE} if with_vae else {})
    missing = [component for component, prefix in found.items() if not _has(entries, prefix)]
    if missing == list(found):
        raise CheckpointError(f"{where} has no tensor of Stable Diffusion; one of them is {next(iter(entries), None)}")
    if missing:
        fix = "name one in vae" if missing == ["vae"] else "it is a part of a model: use a file with the whole"
        raise CheckpointError(f"{where} has no {' and no '.join(missing)}; {fix}")
    return kind, found


def unet(entries: Entries, open_clip: bool) -> Config:
    """Of a UNet, its keys without their prefix."""
    channels, attends, depths, resnets, place = [], [], [], [], 1
    while f"input_blocks.{place}.0.in_layers.2.weight" in entries:
        at = place
        while f"input_blocks.{place}.0.in_layers.2.weight" in entries:
            place += 1
        resnets.append(place - at)
        channels.append(_shape(entries, f"input_blocks.{at}.0.out_layers.3.weight")[0])
        depths.append(_count(entries, f"input_blocks.{at}.1.transformer_blocks."))
        attends.append(depths[-1] > 0)
        place += 1  # over what halves the resolution
    middle = _count(entries, "middle_block.1.transformer_blocks.")
    context = _shape(entries, "middle_block.1.transformer_blocks.0.attn2.to_k.weight")[1]
    config: Config = {
        "in_channels": _shape(entries, "input_blocks.0.0.weight")[1],
        "block_out_channels": channels,
        "down_block_types": ["CrossAttnDownBlock2D" if each else "DownBlock2D" for each in attends],
        "up_block_types": ["CrossAttnUpBlock2D" if each else "UpBlock2D" for each in reversed(attends)],
        "transformer_layers_per_block": [*(depth or 1 for depth in depths[:-1]), middle],
        "layers_per_block": resnets[0] if len(set(resnets)) == 1 else resnets,
        "cross_attention_dim": context,
        "use_linear_projection": len(_shape(entries, "middle_block.1.proj_in.weight")) == 2,
        "attention_head_dim": [each // HEAD_DIM for each in channels] if open_clip else HEADS,
        "norm_num_groups": GROUPS,
    }
    if "label_emb.0.0.weight" in entries:
        config["addition_embed_type"] = "text_time"
        config["projection_class_embeddings_input_dim"] = _shape(entries, "label_emb.0.0.weight")[1]
    return config


def vae(entries: Entries, is_xl: bool) -> Config:
    """Of an autoencoder, its keys without their prefix."""
    levels, channels = _count(entries, "encoder.down."), _shape(entries, "encoder.conv_out.weight")[0] // 2
    # Of 16 channels FLUX's is the one that is shared in a file; Z-Image has it, too.
    scale = {"scaling_factor": 0.3611, "shift_factor": 0.1159} if channels == 16 else {}
    return {
        "block_out_channels": [_shape(entries, f"encoder.down.{i}.block.0.conv1.weight")[0] for i in range(levels)],
        "layers_per_block": _count(entries, "encoder.down.0.block."),
        "latent_channels": channels,
        "norm_num_groups": GROUPS,
        "use_quant_conv": "quant_conv.weight" in entries,
        "use_post_quant_conv": "post_quant_conv.weight" in entries,
        "scaling_factor": 0.13025 if is_xl else 0.18215,
        **scale,
    }


def text_encoder(entries: Entries, open_clip: bool, layers_left_out: int) -> Config:
    """Of a text encoder, its tensors by transformers' names."""
    vocabulary, width = _shape(entries, "embeddings.token_embedding.weight")
    projection = _shape(entries, "text_projection.weight")[0] if "text_projection.weight" in entries else width
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": _shape(entries, "encoder.layers.0.mlp.fc1.weight")[0],
        "num_hidden_layers": _count(entries, "encoder.layers.") - layers_left_out,
        "num_attention_heads": width // HEAD_DIM,
        "max_position_embeddings": _shape(entries, "embeddings.position_embedding.weight")[0],
        "hidden_act": "gelu" if open_clip else "quick_gelu",
        "projection_dim": projection,
        "eos_token_id": vocabulary - 1,
    }


def _has(entries: Entries, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in entries)


def _shape(entries: Entries, name: str) -> tuple[int, ...]:
    if name not in entries:
        raise CheckpointError(f"tensor {name} is missing")
    return entries[name].shape


def _count(entries: Entries, prefix: str) -> int:
    """How many numbered blocks there are."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in entries if name.startswith(prefix)})
