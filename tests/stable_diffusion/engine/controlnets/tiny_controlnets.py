"""Tiny random ControlNets for tiny checkpoints, made by diffusers; and the maps that they read."""

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

from tests.stable_diffusion.engine.tiny_pictures import shake

STRENGTH = 0.3
"""Of what they add: with more, a random one drowns what the UNet says."""


def save(model: Path, to: Path, seed: int, **changes: Any) -> Path:
    """A ControlNet for the checkpoint in a folder, half as deep as its UNet's pictures are small.

    Args:
        changes: of its config.
    """
    torch.manual_seed(seed)
    unet = diffusers.UNet2DConditionModel.from_pretrained(model / "unet")
    vae = diffusers.AutoencoderKL.load_config(model / "vae")
    image = (8, 12, 16, 24)[: len(vae["block_out_channels"])]
    net = diffusers.ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=image)
    config = dict(net.config) | changes
    net = diffusers.ControlNetModel.from_config(config)
    shake(net)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.startswith(("controlnet_down_blocks", "controlnet_mid_block")):
                weight *= STRENGTH
    net.save_pretrained(to)
    return to


def drawn(seed: int, size: int) -> np.ndarray:
    """A map [size, size, 3] uint8: rectangles on black, of which no two channels are alike."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((size, size, 3), np.uint8)
    for _ in range(4):
        top, left = random.integers(0, size - 4, 2)
        height, width = random.integers(4, size // 2, 2)
        pixels[top : top + height, left : left + width] = random.integers(0, 256, 3)
    return pixels
