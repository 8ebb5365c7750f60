"""Opens a ControlNet: a folder in diffusers' layout, or a single file with diffusers' or its authors' names."""

import re
from collections.abc import Mapping
from typing import Any

from apps.arrays.model_folder import CheckpointError, TensorEntry
from apps.serving.numbers.ranges import Range, check
from apps.stable_diffusion.engine.controlnets import names
from apps.stable_diffusion.engine.controlnets.network import WITH_ATTENTION, WITHOUT
from apps.stable_diffusion.engine.ldm.component import ComponentFile
from apps.stable_diffusion.engine.ldm.locations import located
from apps.stable_diffusion.engine.ldm.unet_names import UNetNames
from apps.stable_diffusion.engine.model.checkpoint import OTHER_FILE, VAE_FILE
from apps.stable_diffusion.engine.model.config_ranges import FIELDS
from apps.stable_diffusion.engine.model.unet import UNetArchitecture

CLASS = "ControlNetModel"
HALVED = f"{OTHER_FILE}.fp16.safetensors"
NUMBERS = FIELDS["unet"] | {"conditioning_embedding_out_channels": Range(1, 2**15, many=True)}
OTHERS = {
    "lora_controlnet": "a Control-LoRA",
    "difference": "the difference of a ControlNet and a UNet",
    "lllite_": "a ControlNet-LLLite",
    "task_embedding": "a ControlNet-Union",
    "control_add_embedding.": "a ControlNet-Union",
    "ip_adapter.": "an IP-Adapter",
    "image_proj.": "an IP-Adapter",
    "adapter.": "a T2I-Adapter",
    "body.": "a T2I-Adapter",
    "controlnet_blocks.": "a ControlNet of a diffusion transformer",
    "control_layers.": "a ControlNet of a diffusion transformer",
    "model.diffusion_model.": "a checkpoint",
    "lora_unet_": "a LoRA: name it in loras",
}
"""How keys of other files begin."""
_LAYERS = re.compile(r"^down_blocks\.(\d+)\.(resnets|attentions)\.(\d+)\.(?:transformer_blocks\.(\d+)\.)?")


class ControlNetFile(ComponentFile):
    """Its config and tensors, as a `ComponentSource`.

    Args:
        location: a folder with config.json, or a file in safetensors: local, at a URL, or on the hub as OWNER/NAME or
            OWNER/NAME/FILE.
        unet: config of the UNet that it is for.

    Raises:
        CheckpointError: it cannot be read, or is something else.
    """

    config: Mapping[str, Any]

    @property
    def bgr(self) -> bool:
        """Whether it reads blue first."""
        return self.config.get("controlnet_conditioning_channel_order", "rgb") == "bgr"

    @property
    def pooled(self) -> bool:
        """Whether only each channel's mean is added, and only with the prompt."""
        return bool(self.config.get("global_pool_conditions", False))

    def __init__(self, location: str, unet: Mapping[str, Any]) -> None:
        folder, file = located(location, ["config.json", VAE_FILE, HALVED])
        super().__init__(folder, file or VAE_FILE)
        if file is None and not self.has(VAE_FILE):
            self.name = HALVED
        if not self.has(self.name):
            raise CheckpointError(f"{self.location}: {file or VAE_FILE} is missing")
        entries = self.header(self.name)
        for prefix, what in OTHERS.items():
            if any(key.startswith(prefix) for key in entries):
                raise CheckpointError(f"{self.where('')} is {what}; served are ControlNets of Stable Diffusion")
        if file is None:
            self.config, self.entries = self._config(), entries
            return
        renamed = entries
        if any(key.removeprefix(names.PREFIX).startswith("input_blocks.") for key in entries):
            own = UNetNames(UNetArchitecture.of(unet))
            renamed = {new: each for key, each in entries.items() if (new := names.diffusers(key, own)) is not None}
        self.entries = renamed
        self.config = _read_off(self.where(""), renamed, unet)

    def _config(self) -> Mapping[str, Any]:
        config = self.read_json("config.json")
        if not isinstance(config, dict):
            raise CheckpointError(f"{self.location}: config.json is missing or is not a JSON object")
        if (found := config.get("_class_name", CLASS)) != CLASS:
            raise CheckpointError(f"{self.location}: config.json is of a {found}; only {CLASS} is served")
        check(f"{self.location}/config.json", config, NUMBERS, CheckpointError)
        return config


def _read_off(where: str, entries: Mapping[str, TensorEntry], unet: Mapping[str, Any]) -> dict[str, Any]:
    """A config: what shapes say, and what they do not say as the UNet has it.

    Raises:
        CheckpointError: a tensor that says something is missing.
    """

    def first(name: str) -> int:
        """Outputs of a layer."""
        if (entry := entries.get(f"{name}.weight")) is None:
            raise CheckpointError(f"{where}: tensor {name}.weight is missing; a ControlNet has it")
        return entry.shape[0]

    found = [match for name in entries if (match := _LAYERS.match(name))]
    levels = 1 + max((int(match[1]) for match in found), default=0)
    depths = [1 + max((int(m[4]) for m in found if int(m[1]) == i and m[4]), default=0) for i in range(levels)]
    attends = [any(match[2] == "attentions" and int(match[1]) == i for match in found) for i in range(levels)]
    image, place = [first("controlnet_cond_embedding.conv_in")], 1
    while f"controlnet_cond_embedding.blocks.{place}.weight" in entries:
        image.append(first(f"controlnet_cond_embedding.blocks.{place}"))
        place += 2
    in_middle = {
        name.split(".")[4] for name in entries if name.startswith("mid_block.attentions.0.transformer_blocks.")
    }
    if in_middle:  # as deep as the last on the way down, or in its place
        depths[-1] = len(in_middle)
    return {
        **unet,
        "block_out_channels": [first(f"down_blocks.{i}.resnets.0.conv1") for i in range(levels)],
        "down_block_types": ["CrossAttnDownBlock2D" if each else "DownBlock2D" for each in attends],
        "mid_block_type": WITH_ATTENTION if in_middle else WITHOUT,
        "layers_per_block": 1 + max((int(match[3]) for match in found if match[2] == "resnets"), default=0),
        "transformer_layers_per_block": depths,
        "conditioning_embedding_out_channels": image,
        "addition_embed_type": "text_time" if "add_embedding.linear_1.weight" in entries else None,
        # As its authors' web UI does: the file does not say it.
        "global_pool_conditions": "shuffle" in where.rsplit("/", 1)[-1].lower(),
    }
