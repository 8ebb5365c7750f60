"""Checkpoints in a single file against diffusers' own reading of the same file (`from_single_file`)."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import safetensors.torch
import torch

from apps.arrays.model_folder import CheckpointError
from apps.plan.stable_diffusion.known import Z_IMAGE
from apps.stable_diffusion.engine.backends.choice import open_backend
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.ldm.autoencoder import Autoencoder
from apps.stable_diffusion.engine.ldm.opening import open_checkpoint
from apps.stable_diffusion.engine.request import PictureRequest
from tests.stable_diffusion.engine.single_files import tiny_single_files
from tests.stable_diffusion.engine.single_files.tiny_single_files import Family, single_file
from tests.stable_diffusion.engine.test_pictures import CLASSES, SIZE, ask, difference, make

FAMILIES = ("sd1", *(pytest.param(family, marks=pytest.mark.slow) for family in ("sd2", "sdxl")))
FILE = "vae.safetensors"
KINDS = {"sd1": diffusers.StableDiffusionPipeline, "sd2": diffusers.StableDiffusionPipeline}
KINDS["sdxl"] = diffusers.StableDiffusionXLPipeline


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], tuple[Any, Path, Path]]:
    """A family's pipeline, its folder in diffusers' layout, and its single file."""

    @cache
    def make(family: Family) -> tuple[Any, Path, Path]:
        folder = tmp_path_factory.mktemp(family)
        pipe = tiny_single_files.pipeline(family, folder / "folder")
        return pipe, folder / "folder", single_file(pipe, folder / "mixed_v8.safetensors")

    return make


def opened(made: Any, family: Family, **changes: Any) -> Any:
    _, folder, file = made(family)
    predicts = {"prediction": "v_prediction"} if family == "sd2" else {}
    return open_checkpoint(str(file), **{"tokenizer": str(folder / "tokenizer"), **predicts, **changes})


def drawn(pipe: Any, request: PictureRequest) -> np.ndarray:
    """The same by diffusers' pipeline, with the scheduler that it has."""
    pipe.set_progress_bar_config(disable=True)
    picture = pipe(
        request.prompt,
        negative_prompt=request.negative_prompt or None,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        width=SIZE,
        height=SIZE,
    ).images[0]
    return np.asarray(picture)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_pictures(made: Any, family: Family, compile_cache: str) -> None:
    backend = JaxBackend(
        opened(made, family), sizes=[(SIZE, SIZE)], max_batch_size=1, dtype="float32", compile_cache=compile_cache
    )
    backend.compile()
    _, folder, file = made(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = KINDS[family].from_single_file(str(file), config=str(folder), local_files_only=True)
    pipe.safety_checker = None
    config = made(family)[0].scheduler.config
    for scheduler in ("ddim", "euler", "dpm-solver++"):
        request = ask(scheduler, 4, negative_prompt="" if scheduler == "ddim" else "blue")
        pipe.scheduler = CLASSES[scheduler].from_config(config, clip_sample=False)
        assert difference(make(backend, request)[0], drawn(pipe, request)) <= 2, scheduler


@pytest.mark.parametrize("family", FAMILIES)
def test_configs_are_those_of_the_folder(made: Any, family: Family) -> None:
    _, folder, _ = made(family)
    single, whole = opened(made, family), open_checkpoint(str(folder))
    assert single.kind is whole.kind
    for component in whole.components:
        theirs = whole.config(component)
        for field, value in single.config(component).items():
            if field in theirs and field not in ("transformer_layers_per_block", "attention_head_dim"):
                assert theirs[field] == value, (component, field)
    for field, value in single.scheduler_config.items():
        assert whole.scheduler_config.get(field, value) == value, field


def test_tensors_that_no_network_has_are_not_read(made: Any) -> None:
    single = opened(made, "sd1")
    assert not any("ema" in name or "alphas" in name for part in single.components for name in single.tensors(part))


def test_what_the_unet_predicts(made: Any, tmp_path: Path) -> None:
    """Markers of XL's files as A1111 and ComfyUI read them; `modelspec.prediction_type` of Stability's ModelSpec."""
    pipe, folder, _ = made("sdxl")
    tokenizer = str(folder / "tokenizer")
    assert opened(made, "sdxl").scheduler_config["prediction_type"] == "epsilon"
    marked = single_file(pipe, tmp_path / "v.safetensors", {"v_pred": torch.ones(1), "ztsnr": torch.ones(1)})
    config = open_checkpoint(str(marked), tokenizer).scheduler_config
    assert config["prediction_type"] == "v_prediction" and config["rescale_betas_zero_snr"]
    assert open_checkpoint(str(marked), tokenizer, "epsilon").scheduler_config["prediction_type"] == "epsilon"
    two = made("sd2")[2]
    with pytest.raises(CheckpointError, match=r"does not say what its UNet predicts: set prediction to v_prediction"):
        _ = open_checkpoint(str(two), tokenizer).scheduler_config
    says = single_file(made("sd2")[0], tmp_path / "says.safetensors", **{"modelspec.prediction_type": "v"})
    assert open_checkpoint(str(says), tokenizer).scheduler_config["prediction_type"] == "v_prediction"


def renamed(file: Path, path: Path, rename: Callable[[str], str | None]) -> Path:
    """The file with other names, or without some of its tensors."""
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({new: each for name, each in tensors.items() if (new := rename(name))}, path)
    return path


def without(*prefixes: str) -> Callable[[str], str | None]:
    return lambda name: None if name.startswith(prefixes) else name


@pytest.mark.parametrize(
    "rename, says",
    [
        (without("first_stage_model."), "has no vae; name one in vae"),
        (without("first_stage_model.", "cond_stage_model."), "has no text_encoder and no vae; it is a part of a model"),
        (without("model.", "first_", "cond_"), "has no tensor of Stable Diffusion; one of them is alphas_cumprod"),
        (lambda name: f"lora_unet_{name}", "is a LoRA: name it in loras"),
        (lambda name: f"model.diffusion_model.double_blocks.{name}", "is FLUX"),
        (lambda name: name.replace("cond_stage_model.", "conditioner.embedders.0.model."), "is an XL refiner"),
        (without("model.diffusion_model.input_blocks.2"), "other.safetensors: unet: tensor .* has shape"),
        (without("model.diffusion_model.middle_block.1"), "tensor middle_block.1.* is missing"),
        (without("first_stage_model.encoder.conv_out"), "tensor encoder.conv_out.weight is missing"),
        (without("cond_stage_model.transformer.text_model.embeddings.token"), "token_embedding.weight is missing"),
        (without("first_stage_model.decoder.mid.attn_1.k"), "vae: tensor decoder.mid_block.attentions.0.to_k"),
    ],
)
def test_files_that_are_something_else(made: Any, tmp_path: Path, rename: Any, says: str) -> None:
    _, folder, file = made("sd1")
    other = renamed(file, tmp_path / "other.safetensors", rename)
    with pytest.raises(CheckpointError, match=says) as refused:
        checkpoint = open_checkpoint(str(other), str(folder / "tokenizer"))
        JaxBackend(checkpoint, sizes=[(SIZE, SIZE)], max_batch_size=1, dtype="float32")
    assert str(tmp_path) in str(refused.value)


def test_an_inpainting_model(made: Any, tmp_path: Path) -> None:
    pipe, folder, _ = made("sd1")
    wide = {"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(64, 9, 3, 3)}
    file = single_file(pipe, tmp_path / "paint.safetensors", wide)
    with pytest.raises(CheckpointError, match="it is an inpainting model, whose UNet reads the mask"):
        open_checkpoint(str(file), str(folder / "tokenizer"))


@pytest.mark.parametrize(
    "location, says",
    [
        ("{}/model.ckpt", "is a pickle, which is not read"),
        ("{}/none.safetensors", "no such file; on the hub, name it OWNER/NAME or OWNER/NAME/FILE"),
        ("file://{}/none.safetensors", "none.safetensors is missing"),
        ("{}/text.safetensors", "is not a safetensors file or is cut short"),
    ],
)
def test_locations(tmp_path: Path, location: str, says: str) -> None:
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(location.format(tmp_path))


def test_a_url_and_a_tokenizer_that_is_not_there(made: Any) -> None:
    _, folder, file = made("sd1")
    remote = open_checkpoint(f"file://{file}", str(folder / "tokenizer"))
    assert remote.config("unet") == opened(made, "sd1").config("unet")
    with pytest.raises(CheckpointError, match="tokenizer"):
        open_checkpoint(str(file), str(folder / "unet")).tokenizer("tokenizer")
    with pytest.raises(CheckpointError, match="tokenizer is for checkpoints in a single file"):
        open_checkpoint(str(folder), "x/y")


def test_backends(made: Any) -> None:
    """The torch backends read diffusers' layout; `auto` takes jax."""
    _, folder, file = made("sd1")
    settings: dict[str, Any] = {"tokenizer": str(folder / "tokenizer"), "sizes": [(SIZE, SIZE)], "dtype": "float32"}
    with pytest.raises(ValueError, match="backend torch reads diffusers' layout"):
        open_backend(str(file), backend="torch", **settings)
    assert open_backend(str(file), max_batch_size=1, **settings).name == "jax"


@pytest.mark.slow
def test_another_autoencoder(made: Any, tmp_path: Path, compile_cache: str) -> None:
    """In both layouts, and for a file without one of its own; against diffusers' pipeline with that autoencoder."""
    pipe, folder, file = made("sd1")
    other = tiny_single_files.pipeline("sd1", tmp_path / "other", seed=9).vae
    other.register_to_config(scaling_factor=0.3)
    other.save_pretrained(tmp_path / "vae")
    bare = renamed(file, tmp_path / "bare.safetensors", without("first_stage_model."))
    own = {name: each.contiguous() for name, each in tiny_single_files._vae(other).items()}
    safetensors.torch.save_file(own, tmp_path / FILE)
    settings: dict[str, Any] = {"sizes": [(SIZE, SIZE)], "max_batch_size": 1, "dtype": "float32"}
    for vae, scale, model in (("vae", 0.3, bare), (FILE, 0.18215, folder), (FILE, 0.18215, bare)):
        more = {} if model == folder else {"tokenizer": str(folder / "tokenizer")}
        backend = open_backend(str(model), vae=str(tmp_path / vae), compile_cache=compile_cache, **more, **settings)
        with_other = diffusers.StableDiffusionPipeline(
            **{**pipe.components, "vae": diffusers.AutoencoderKL.from_pretrained(tmp_path / "vae")},
            requires_safety_checker=False,
        )
        with_other.vae.register_to_config(scaling_factor=scale)
        request = ask("ddim", 3)
        assert difference(make(backend, request)[0], drawn(with_other, request)) <= 2, (vae, model)
    with pytest.raises(CheckpointError, match="is no autoencoder of Stable Diffusion: tensor encoder"):
        open_checkpoint(str(folder), vae=str(folder / "unet" / "diffusion_pytorch_model.safetensors"))
    with pytest.raises(ValueError, match="no other vae: set backend jax"):
        open_backend(str(folder), vae=str(tmp_path / "vae"), backend="torch", **settings)


def test_an_autoencoder_of_sixteen_channels(tmp_path: Path) -> None:
    """FLUX's, which Z-Image has: its scale is that of Z-Image's published config."""
    levels = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    quant = {"use_quant_conv": False, "use_post_quant_conv": False}
    sizes = {"block_out_channels": (32, 64), "layers_per_block": 2, "latent_channels": 16}
    whole = diffusers.AutoencoderKL(**levels, **quant, **sizes)
    own = {name: each.contiguous() for name, each in tiny_single_files._vae(whole).items()}
    safetensors.torch.save_file(own, tmp_path / FILE)
    read = Autoencoder(str(tmp_path / FILE), is_xl=False)
    published = Z_IMAGE["vae"]
    for field in ("latent_channels", "scaling_factor", "shift_factor", *quant):
        assert read.vae_config[field] == published[field], field
    assert {name: entry.shape for name, entry in read.tensors("vae").items()} == {
        name: tuple(each.shape) for name, each in whole.state_dict().items()
    }
