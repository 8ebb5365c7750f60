"""Whole pictures of Z-Image against diffusers' pipelines, whose loop is another, for the same seeds."""

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend, JaxPicture
from apps.stable_diffusion.engine.request import PictureRequest, Size
from tests.stable_diffusion.engine.flow import tiny_transformers
from tests.stable_diffusion.engine.flow.conftest import SIZES

WORDS = "a red circle on white "


def ask(
    size: Size = (32, 32), steps: int = 4, guidance: float = 2.5, seed: int = 3, prompt: str = WORDS, **more: Any
) -> PictureRequest:
    return PictureRequest(prompt, *size, steps, guidance, "euler", seed=seed, **more)


def image(size: Size) -> np.ndarray:
    width, height = size
    return (np.arange(width * height * 3).reshape(height, width, 3) * 7 % 256).astype(np.uint8)


def mask(size: Size) -> np.ndarray:
    return np.arange(size[1])[:, None] + np.arange(size[0])[None] < size[0] - 3


def run(backend: JaxBackend, *requests: PictureRequest) -> list[JaxPicture]:
    """Pictures made in one batch, each leaving it when it is done."""
    pictures = [backend.start(request) for request in requests]
    while going := [picture for picture in pictures if picture.steps_done < picture.steps_total]:
        backend.denoise(going, min(picture.steps_total - picture.steps_done for picture in going))
    backend.wait(pictures)
    return pictures


def latents(backend: JaxBackend, picture: JaxPicture) -> np.ndarray:
    """[h, w, channels]."""
    shape = backend.programs.latents((picture.request.width, picture.request.height))
    return np.asarray(backend.programs.denoiser.unpacked(np.asarray(picture.state.latents), shape))


@cache
def pipeline(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return diffusers.DiffusionPipeline.from_pretrained(folder)


def reference(folder: Path, request: PictureRequest, kind: str = "latent") -> np.ndarray:
    """The same by `ZImagePipeline.__call__` and its like: [h, w, channels] latents, or pixels from 0 to 1."""
    pipe, more = pipeline(folder), {"width": request.width, "height": request.height}
    if request.image is not None:
        name = "ZImageImg2ImgPipeline" if request.mask is None else "ZImageInpaintPipeline"
        pipe = getattr(diffusers, name)(**pipe.components)
        more |= {"image": Image.fromarray(request.image), "strength": request.strength}
        if request.mask is not None:
            more |= {"mask_image": Image.fromarray(request.mask)}
    pipe.set_progress_bar_config(disable=True)
    found = pipe(
        request.prompt,
        negative_prompt=request.negative_prompt,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent" if kind == "latent" else "np",
        **more,
    ).images[0]
    return found.permute(1, 2, 0).numpy() if kind == "latent" else found


def assert_as_diffusers(backend: JaxBackend, folder: Path, request: PictureRequest) -> None:
    (picture,) = run(backend, request)
    np.testing.assert_allclose(latents(backend, picture), reference(folder, request), atol=1e-3)
    (pixels,) = backend.decode([picture])
    assert np.abs(pixels / 255 - reference(folder, request, "pixels")).max() <= 0.5 / 255 + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("size", [SIZES[1], SIZES[3]])
def test_as_diffusers(made: JaxBackend, z_image: Path, size: Size, guidance: float) -> None:
    """Guidance of 0 is none, as in diffusers; 0.5 is some, where Stable Diffusion has none up to 1."""
    assert_as_diffusers(made, z_image, ask(size, guidance=guidance, negative_prompt="blue square"))


@pytest.mark.parametrize("prompt", ["", WORDS * 4, WORDS * 120], ids=["empty", "past the learned tokens", "cut at 512"])
def test_prompts_of_any_length(made: JaxBackend, z_image: Path, prompt: str) -> None:
    assert_as_diffusers(made, z_image, ask(prompt=prompt, steps=2))
    warned = made.start(ask(prompt=prompt)).warnings
    assert bool(warned) == (len(prompt) > 1000) and all("red circle" in each for each in warned)


@pytest.mark.parametrize(("steps", "strength"), [(5, 0.5), (4, 0.3), (3, 1.0)])
@pytest.mark.parametrize("masked", [False, True], ids=["image to image", "inpainting"])
def test_from_an_image_as_diffusers(made: JaxBackend, z_image: Path, masked: bool, steps: int, strength: float) -> None:
    """Of 5 steps at a strength of 0.5 diffusers runs 3 here, where its pipelines of Stable Diffusion run 2."""
    size = SIZES[2]
    more = {"image": image(size), "mask": mask(size) if masked else None, "strength": strength}
    assert_as_diffusers(made, z_image, ask(size, steps, **more))


MIXED = (
    ask(SIZES[0], 4, 0.0),
    ask(SIZES[1], 2, 4.0, 11, prompt="two green squares", negative_prompt="blue " * 40),
    ask(SIZES[2], 5, 1.5, 5, image=image(SIZES[2]), mask=mask(SIZES[2]), strength=0.7),
)


@pytest.mark.slow
def test_a_batch_of_three_sizes_gives_what_each_gives_alone(made: JaxBackend, z_image: Path) -> None:
    """With guidance, step counts and prompts' lengths of their own; each also as diffusers makes it."""
    compiled = made.compiles_after_ready
    alone = [latents(made, run(made, request)[0]) for request in MIXED]
    together = run(made, *MIXED)
    for picture, expected in zip(together, alone):
        np.testing.assert_allclose(latents(made, picture), expected, atol=1e-4)
        np.testing.assert_allclose(latents(made, picture), reference(z_image, picture.request), atol=1e-3)
    assert [pixels.shape[:2] for pixels in made.decode(together)] == [size[::-1] for size in SIZES[:3]]
    assert made.compiles_after_ready == compiled
    assert len({made.group(size) for size in SIZES[:3]}) == 1 and made.group(SIZES[3]) != made.group(SIZES[0])


@pytest.mark.slow
def test_another_checkpoint(tmp_path: Path, compile_cache: str) -> None:
    """With noise levels that depend on the size, and an encoder saved without its head."""
    shift = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "shift_terminal": 0.02}
    folder = tiny_transformers.save_z_image(tmp_path, seed=1, shift=shift, causal=False)
    backend = JaxBackend(folder, sizes=SIZES, guided=False, dtype="float32", compile_cache=compile_cache)
    for size in SIZES[1:]:
        assert_as_diffusers(backend, folder, ask(size, guidance=0.0))
    with pytest.raises(RequestError, match=r"guidance_scale is 0.5; .* set it to at most 0"):
        backend.start(ask(guidance=0.5))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scheduler": "ddim"}, "scheduler 'ddim' cannot serve this model: use euler"),
        ({"karras": True}, "leave out Karras"),
    ],
)
def test_requests_that_are_refused(made: JaxBackend, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        made.start(replace(ask(), **changes))
