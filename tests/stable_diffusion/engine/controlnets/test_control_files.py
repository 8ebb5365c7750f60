"""Files of ControlNets: the layouts in use, against diffusers' own reading of the same file, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.controlnets.file import ControlNetFile
from apps.stable_diffusion.engine.controlnets.use import ControlUse
from apps.stable_diffusion.engine.request import PictureRequest
from tests.stable_diffusion.engine import tiny_pictures
from tests.stable_diffusion.engine.controlnets import tiny_controlnets
from tests.stable_diffusion.engine.flow import tiny_transformers
from tests.stable_diffusion.engine.single_files.tiny_single_files import RESNET

ATTENTION = "control_model.input_blocks.1.1"
SIDE = 64
"""Pixels of a picture; its latents are eight times smaller, as the authors' files have it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with the autoencoder's four levels, and a ControlNet in `controlnet`."""
    folder = tiny_pictures.save("sd1", tmp_path_factory.mktemp("sd1"))
    torch.manual_seed(5)
    levels = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    vae = diffusers.AutoencoderKL(
        **levels, block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=8, scaling_factor=0.5
    )
    tiny_pictures.shake(vae)
    vae.save_pretrained(folder / "vae")
    tiny_controlnets.save(folder, folder / "controlnet", 1)
    return folder


def authors(folder: Path, prefix: str = "control_model.") -> dict[str, torch.Tensor]:
    """The ControlNet's tensors by its authors' names: written once more here, from diffusers' layout on.

    Source: `convert_controlnet_checkpoint` in diffusers' loaders/single_file_utils.py, read backwards.
    """
    net = diffusers.ControlNetModel.from_pretrained(folder)
    resnets, levels = net.config.layers_per_block, len(net.config.block_out_channels)
    places = {}
    for i in range(levels):
        for j in range(resnets):
            place = 1 + i * (resnets + 1) + j
            places[f"down_blocks.{i}.resnets.{j}."] = f"input_blocks.{place}.0."
            places[f"down_blocks.{i}.attentions.{j}."] = f"input_blocks.{place}.1."
        places[f"down_blocks.{i}.downsamplers.0.conv."] = f"input_blocks.{(i + 1) * (resnets + 1)}.0.op."
    for i, name in enumerate(("resnets.0", "attentions.0", "resnets.1")):
        places[f"mid_block.{name}."] = f"middle_block.{i}."
    for i in range(1 + levels * resnets + levels - 1):
        places[f"controlnet_down_blocks.{i}."] = f"zero_convs.{i}.0."
    hints = ("conv_in", *(f"blocks.{i}" for i in range(6)), "conv_out")
    places |= {f"controlnet_cond_embedding.{name}.": f"input_hint_block.{2 * i}." for i, name in enumerate(hints)}
    places |= {"controlnet_mid_block.": "middle_block_out.0.", "conv_in.": "input_blocks.0.0."}
    places |= {"time_embedding.linear_1.": "time_embed.0.", "time_embedding.linear_2.": "time_embed.2."}
    found = {}
    for name, tensor in net.state_dict().items():
        start = max((start for start in places if name.startswith(start)), key=len)
        rest = name.removeprefix(start)
        if ".resnets." in start:
            layer, _, end = rest.rpartition(".")
            rest = f"{RESNET[layer]}.{end}"
        found[prefix + places[start] + rest] = tensor.contiguous()
    return found


def contiguous(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.contiguous() for name, each in net.state_dict().items()}


def backend(model: Path, net: Path | str, compile_cache: str) -> JaxBackend:
    made = JaxBackend(
        model,
        sizes=[(SIDE, SIDE)],
        max_batch_size=1,
        dtype="float32",
        compile_cache=compile_cache,
        controlnets={"edges": str(net)},
    )
    made.compile()
    return made


def latents(made: JaxBackend, request: PictureRequest) -> np.ndarray:
    picture = made.start(request)
    made.denoise([picture], picture.steps_total)
    made.end(picture)
    found = made.latents(picture)
    assert made.compiles_after_ready == 0
    return found


def asked() -> PictureRequest:
    image = tiny_controlnets.drawn(3, SIDE)
    return PictureRequest("a red circle", SIDE, SIDE, 4, 3.0, "ddim", seed=3, controls=(ControlUse("edges", image),))


@pytest.mark.slow
def test_the_authors_names_as_diffusers_reads_them(model: Path, tmp_path: Path, compile_cache: str) -> None:
    """Whole files with their prefix, files without it, and diffusers' names in one file."""
    whole = tmp_path / "control_v11p_sd15_canny.safetensors"
    safetensors.torch.save_file(authors(model / "controlnet"), whole)
    bare, named = tmp_path / "bare.safetensors", tmp_path / "named.safetensors"
    safetensors.torch.save_file(authors(model / "controlnet", ""), bare)
    safetensors.torch.save_file(contiguous(diffusers.ControlNetModel.from_pretrained(model / "controlnet")), named)
    net = diffusers.ControlNetModel.from_single_file(str(whole), config=str(model / "controlnet"))
    pipe = diffusers.StableDiffusionControlNetPipeline.from_pretrained(model, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    request = asked()
    expected = pipe(
        request.prompt,
        image=Image.fromarray(request.controls[0].image),
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(3),
        width=SIDE,
        height=SIDE,
        output_type="latent",
    ).images[0]
    for file in (whole, bare, named, model / "controlnet", f"file://{whole}"):
        made = latents(backend(model, file, compile_cache), request)
        assert np.abs(made - expected.permute(1, 2, 0).numpy()).max() < 1e-3, file


def test_what_a_file_does_not_say(model: Path, tmp_path: Path) -> None:
    """Shuffle's, which alone pools, is known by its name, as in the web UI's extension."""
    unet = json.loads((model / "unet" / "config.json").read_text())
    for name, pools in (("control_v11e_sd15_shuffle", True), ("control_v11p_sd15_canny", False)):
        file = tmp_path / f"{name}.safetensors"
        safetensors.torch.save_file(authors(model / "controlnet"), file)
        opened = ControlNetFile(str(file), unet)
        assert opened.config["global_pool_conditions"] is pools
        theirs = diffusers.ControlNetModel.load_config(model / "controlnet")
        for field in ("down_block_types", "block_out_channels", "conditioning_embedding_out_channels"):
            assert list(opened.config[field]) == list(theirs[field]), field
        assert opened.config["layers_per_block"] == theirs["layers_per_block"]


def test_a_small_one_for_xl_has_no_attention(checkpoint: Callable, tmp_path: Path, compile_cache: str) -> None:
    """As diffusers/controlnet-canny-sdxl-1.0-small: plain blocks, also in the middle; in both layouts."""
    model = checkpoint("sdxl")
    plain = {"down_block_types": ["DownBlock2D"] * 2, "mid_block_type": "UNetMidBlock2D"}
    tiny_controlnets.save(model, tmp_path / "small", 2, **plain)
    net = diffusers.ControlNetModel.from_pretrained(tmp_path / "small")
    single = tmp_path / "small.safetensors"
    safetensors.torch.save_file(contiguous(net), single)
    pipe = diffusers.StableDiffusionXLControlNetPipeline.from_pretrained(model, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    image = tiny_controlnets.drawn(3, 32)
    request = PictureRequest("a cat", 32, 32, 3, 3.0, "euler", seed=3, controls=(ControlUse("small", image),))
    expected = pipe(
        request.prompt,
        image=Image.fromarray(image),
        num_inference_steps=3,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(3),
        width=32,
        height=32,
        output_type="latent",
    ).images[0]
    for where in (tmp_path / "small", single):
        made = JaxBackend(
            model,
            sizes=[(32, 32)],
            max_batch_size=1,
            dtype="float32",
            compile_cache=compile_cache,
            controlnets={"small": str(where)},
        )
        made.compile()
        assert np.abs(latents(made, request) - expected.permute(1, 2, 0).numpy()).max() < 1e-3, where


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda own: {"lora_controlnet": torch.zeros(1)}, "is a Control-LoRA; served are ControlNets of Stable"),
        (lambda own: {"lllite_unet_x.weight": torch.zeros(1)}, "is a ControlNet-LLLite"),
        (lambda own: {"image_proj.proj.weight": torch.zeros(1)}, "is an IP-Adapter"),
        (lambda own: {"body.0.in_conv.weight": torch.zeros(1)}, "is a T2I-Adapter"),
        (lambda own: own | {"task_embedding": torch.zeros(6, 8)}, "is a ControlNet-Union"),
        (lambda own: {"controlnet_blocks.0.weight": torch.zeros(1)}, "is a ControlNet of a diffusion transformer"),
        (lambda own: {"model.diffusion_model.out.0.weight": torch.zeros(1)}, "is a checkpoint"),
        (lambda own: {"x.weight": torch.zeros(1)}, "tensor controlnet_cond_embedding.conv_in.weight is missing"),
        (
            lambda own: {name: each for name, each in own.items() if "zero_convs.1" not in name},
            "tensor controlnet_down_blocks.1.weight is missing: it is not whole, or for another kind of model",
        ),
        (
            lambda own: own | {"control_model.input_blocks.1.0.in_layers.2.weight": torch.zeros(24, 16, 3, 3)},
            r"is for another kind of model: its channels are \[24, 32\], and this model's UNet has \[16, 32\]",
        ),
        (
            lambda own: own | {f"{ATTENTION}.transformer_blocks.0.attn2.to_k.weight": torch.zeros(16, 99)},
            r"has shape \[16, 99\], but the config implies \[16, 32\]: it is not whole, or for another kind of model",
        ),
        (
            lambda own: own | {"control_model.zero_convs.0.0.bias": torch.full((16,), float("nan"))},
            "tensor controlnet_down_blocks.0.bias has numbers that are not finite",
        ),
    ],
)
def test_files_that_are_something_else(model: Path, tmp_path: Path, change: Callable, says: str) -> None:
    file = tmp_path / "other.safetensors"
    safetensors.torch.save_file(change(authors(model / "controlnet")), file)
    with pytest.raises(CheckpointError, match=says) as refused:
        JaxBackend(model, sizes=[(SIDE, SIDE)], max_batch_size=1, dtype="float32", controlnets={"other": str(file)})
    assert "other.safetensors" in str(refused.value)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"_class_name": "ControlNetUnionModel"}, "is of a ControlNetUnionModel; only ControlNetModel is served"),
        ({"conditioning_channels": 4}, "controlnet/config.json: conditioning_channels 4 is not supported, only 3"),
        ({"controlnet_conditioning_channel_order": "hsv"}, "channel_order 'hsv' is not supported, only 'rgb' or 'bgr'"),
        ({"addition_embed_type": "text"}, "addition_embed_type 'text' is not supported"),
        ({"norm_num_groups": 0}, "norm_num_groups"),
        ({"conditioning_embedding_out_channels": [8, 12]}, "makes an image 2 times smaller, and this model needs 8"),
    ],
)
def test_configs(model: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    to = tmp_path / "net"
    tiny_controlnets.save(model, to, 1)
    (to / "config.json").write_text(json.dumps(json.loads((to / "config.json").read_text()) | changes))
    with pytest.raises(CheckpointError, match=says):
        JaxBackend(model, sizes=[(SIDE, SIDE)], max_batch_size=1, dtype="float32", controlnets={"net": str(to)})


@pytest.mark.parametrize(
    "location, says",
    [
        ("{}/net.pth", "is a pickle, which is not read"),
        ("{}/none.safetensors", "no such file; on the hub, name it OWNER/NAME or OWNER/NAME/FILE"),
        ("{}/empty", r"diffusion_pytorch_model\S*safetensors is missing"),
    ],
)
def test_locations(model: Path, tmp_path: Path, location: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=says):
        ControlNetFile(location.format(tmp_path), {})


def test_a_transformer_has_no_controlnet(model: Path, tmp_path: Path) -> None:
    other = tiny_transformers.save_z_image(tmp_path / "z")
    with pytest.raises(ValueError, match=r"controlnets are for Stable Diffusion 1\.x, 2\.x and XL: leave them out"):
        JaxBackend(other, sizes=[(32, 32)], dtype="float32", controlnets={"x": str(model / "controlnet")})
