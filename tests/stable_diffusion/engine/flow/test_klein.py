"""Whole pictures of FLUX.2 klein against diffusers' pipeline, for the same seeds."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest, SecondPass, Size
from apps.stable_diffusion.engine.scheduling.flow import klein_shift
from tests.stable_diffusion.engine.flow import tiny_transformers
from tests.stable_diffusion.engine.flow.conftest import SIZES
from tests.stable_diffusion.engine.flow.test_z_image import WORDS, ask, image, latents, run
from tests.stable_diffusion.engine.flow.test_z_image_checkpoints import change


@pytest.fixture(scope="session")
def klein(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_transformers.save_klein(tmp_path_factory.mktemp("klein"))


@pytest.fixture(scope="session")
def drawn(klein: Path, compile_cache: str) -> JaxBackend:
    """In float32, with guidance, three pictures at once."""
    backend = JaxBackend(klein, sizes=SIZES, max_batch_size=3, dtype="float32", compile_cache=compile_cache)
    backend.compile()
    return backend


@cache
def pipeline(folder: Path) -> Any:
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def asked(pipe: Any, request: PictureRequest, kind: str) -> Any:
    return pipe(
        prompt=request.prompt,
        width=request.width,
        height=request.height,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type=kind,
    ).images[0]


def reference(pipe: Any, request: PictureRequest) -> np.ndarray:
    """[h, w, channels] latents, normed again as the transformer has them."""
    squares = pipe._patchify_latents(asked(pipe, request, "latent")[None])
    norm = pipe.vae.bn
    deviation = torch.sqrt(norm.running_var + pipe.vae.config.batch_norm_eps)
    squares = (squares - norm.running_mean[:, None, None]) / deviation[:, None, None]
    return pipe._unpatchify_latents(squares)[0].permute(1, 2, 0).detach().numpy()


def assert_as_diffusers(backend: JaxBackend, folder: Path, request: PictureRequest) -> None:
    (picture,) = run(backend, request)
    pipe = pipeline(folder)
    np.testing.assert_allclose(latents(backend, picture), reference(pipe, request), atol=1e-3)
    (pixels,) = backend.decode([picture])
    assert np.abs(pixels / 255 - asked(pipe, request, "np")).max() <= 0.5 / 255 + 1e-3


@pytest.mark.parametrize(("size", "guidance", "steps"), [(SIZES[1], 1.0, 4), (SIZES[3], 4.0, 3)])
def test_as_diffusers(drawn: JaxBackend, klein: Path, size: Size, guidance: float, steps: int) -> None:
    assert_as_diffusers(drawn, klein, ask(size, steps, guidance))


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["", WORDS * 30, WORDS * 120], ids=["empty", "two parts", "cut at 512"])
def test_prompts_of_any_length(drawn: JaxBackend, klein: Path, prompt: str) -> None:
    """What lies behind a prompt counts, too."""
    assert_as_diffusers(drawn, klein, ask(prompt=prompt, steps=2))


MIXED = (
    ask(SIZES[0], 4, 1.0),
    ask(SIZES[1], 2, 4.0, 11, prompt="two green squares"),
    ask(SIZES[2], 5, 1.5, 5, prompt="blue " * 40),
)


@pytest.mark.slow
def test_a_batch_of_three_sizes_gives_what_each_gives_alone(drawn: JaxBackend, klein: Path) -> None:
    compiled = drawn.compiles_after_ready
    for picture in run(drawn, *MIXED):
        np.testing.assert_allclose(latents(drawn, picture), reference(pipeline(klein), picture.request), atol=1e-3)
    assert drawn.compiles_after_ready == compiled
    assert len({drawn.group(size) for size in SIZES[:3]}) == 1 and drawn.group(SIZES[3]) != drawn.group(SIZES[0])


@pytest.mark.slow
def test_another_checkpoint(tmp_path: Path, compile_cache: str) -> None:
    """Distilled, with a narrower decoder: guidance is refused, at the start and in a request."""
    folder = tiny_transformers.save_klein(tmp_path, 1, distilled=True, decoder_block_out_channels=(8, 16))
    with pytest.raises(ValueError, match=r"this model is distilled, .*: set guidance_scale=1"):
        JaxBackend(folder, sizes=SIZES, dtype="float32")
    backend = JaxBackend(folder, sizes=SIZES[:1], guided=False, dtype="float32", compile_cache=compile_cache)
    assert_as_diffusers(backend, folder, ask(guidance=1.0))
    with pytest.raises(RequestError, match=r"guidance_scale is 2; .* set it to at most 1"):
        backend.start(ask(guidance=2))


@pytest.mark.parametrize("steps", [1, 4, 28, 200])
@pytest.mark.parametrize("patches", [64, 1024, 4096, 4300, 4301, 8192])
def test_shifts_are_those_of_diffusers(patches: int, steps: int) -> None:
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    assert klein_shift(patches, steps) == pytest.approx(compute_empirical_mu(patches, steps), rel=1e-12)


@pytest.mark.slow
def test_a_batch_of_three_loras(klein: Path, tmp_path: Path, compile_cache: str) -> None:
    """As diffusers' files have them, each with the base model's own output beside it."""
    room, random = LoraRoom(3, 8), torch.Generator().manual_seed(5)
    backend = JaxBackend(
        klein, sizes=SIZES[:3], max_batch_size=3, dtype="float32", compile_cache=compile_cache, lora_room=room
    )
    layers = diffusers.Flux2Transformer2DModel.from_pretrained(klein / "transformer").named_modules()
    linear = {name: layer for name, layer in layers if isinstance(layer, torch.nn.Linear) and "blocks" in name}
    assert any(name.endswith("single_transformer_blocks.0.attn.to_out") for name in linear)
    for name in ("one", "two"):
        tensors = {}
        for layer, module in linear.items():
            tensors[f"transformer.{layer}.lora_A.weight"] = torch.randn((4, module.in_features), generator=random) / 8
            tensors[f"transformer.{layer}.lora_B.weight"] = torch.randn((module.out_features, 4), generator=random) / 8
        save_file(tensors, tmp_path / f"{name}.safetensors")
        backend.loras.load(name, str(tmp_path / f"{name}.safetensors"))
    backend.compile()
    requests = (
        ask(SIZES[0], 4, 1.0, loras=(LoraUse("one"),)),
        ask(SIZES[1], 2, 4.0, loras=(LoraUse("one", 0.5), LoraUse("two", -0.7))),
        ask(SIZES[2], 3, 1.0),
    )
    pipe = diffusers.DiffusionPipeline.from_pretrained(klein)
    pipe.set_progress_bar_config(disable=True)
    for name in ("one", "two"):
        pipe.load_lora_weights(str(tmp_path / f"{name}.safetensors"), adapter_name=name)
    plain = reference(pipeline(klein), requests[0])
    for picture, request in zip(run(backend, *requests), requests):
        pipe.enable_lora() if request.loras else pipe.disable_lora()
        if request.loras:
            pipe.set_adapters([use.name for use in request.loras], [use.weight for use in request.loras])
        expected = reference(pipe, request)
        np.testing.assert_allclose(latents(backend, picture), expected, atol=1e-3)
        assert request is not requests[0] or np.abs(expected - plain).max() > 0.1


@pytest.mark.parametrize(
    ("file", "changes", "complaint"),
    [
        ("transformer/config.json", {"guidance_embeds": True}, "guidance_embeds True is not supported, only False"),
        ("transformer/config.json", {"axes_dims_rope": [4, 6, 6]}, "needs four even numbers whose sum is .*, 16"),
        ("transformer/config.json", {"in_channels": 18}, "in_channels must be a multiple of 4"),
        (
            "transformer/config.json",
            {"joint_attention_dim": 64},
            "is 64, but the text encoder's .* times 3 layers is 48",
        ),
        ("transformer/config.json", {"num_layers": 3}, "tensor transformer_blocks.2.*is missing"),
        ("text_encoder/config.json", {"num_hidden_layers": 27}, "is 27, but the transformer reads layers 9, 18, 27"),
        ("vae/config.json", {"patch_size": [4, 4]}, r"patch_size \[4, 4\] is not supported"),
        ("model_index.json", {"_class_name": "Flux2Pipeline"}, "Flux2Pipeline"),
    ],
)
def test_what_is_not_served_is_refused(
    klein: Path, tmp_path: Path, file: str, changes: dict[str, Any], complaint: str
) -> None:
    model = shutil.copytree(klein, tmp_path / "model")
    change(model / file, **changes)
    with pytest.raises(CheckpointError, match=complaint):
        JaxBackend(model, sizes=SIZES, dtype="float32")


def test_an_image_is_refused(drawn: JaxBackend) -> None:
    with pytest.raises(RequestError, match="this model makes pictures of prompts alone"):
        drawn.start(ask(image=image((32, 32)), strength=0.5))
    with pytest.raises(RequestError, match="this model's pictures have one pass"):
        drawn.start(ask(SIZES[3], second_pass=SecondPass(32, 32)))
