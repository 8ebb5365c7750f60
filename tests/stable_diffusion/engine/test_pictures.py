"""Whole pictures: each backend against diffusers' pipelines, whose loop is another, for the same seeds."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.request import SCHEDULERS, PictureRequest
from tests.stable_diffusion.engine.picture_backends import BACKENDS

CLASSES = {
    "ddim": diffusers.DDIMScheduler,
    "euler": diffusers.EulerDiscreteScheduler,
    "euler-ancestral": diffusers.EulerAncestralDiscreteScheduler,
    "dpm-solver++": diffusers.DPMSolverMultistepScheduler,
    "lcm": diffusers.LCMScheduler,
}
SIZE = 32
PICTURE = (np.arange(SIZE * SIZE * 3).reshape(SIZE, SIZE, 3) * 7 % 256).astype(np.uint8)
MASK = np.arange(SIZE)[:, None] + np.arange(SIZE)[None] < SIZE - 3


def ask(scheduler: str = "ddim", steps: int = 5, guidance: float = 3.0, seed: int = 3, **more: Any) -> PictureRequest:
    more = {"prompt": "a red circle on white"} | more
    return PictureRequest(
        width=SIZE,
        height=SIZE,
        num_inference_steps=steps,
        guidance_scale=guidance,
        scheduler=scheduler,
        seed=seed,
        **more,
    )


def make(backend: Backend, *requests: PictureRequest) -> list[np.ndarray]:
    """Pictures made in one batch, each leaving it when it is done."""
    pictures = [backend.start(request) for request in requests]
    while going := [picture for picture in pictures if picture.steps_done < picture.steps_total]:
        backend.denoise(going, min(picture.steps_total - picture.steps_done for picture in going))
    backend.wait(pictures)
    return backend.decode(pictures)


def make_with_latents(backend: Any, *requests: PictureRequest) -> list[tuple[np.ndarray, np.ndarray]]:
    """Like `make`, over the JAX backend: latents [h, w, channels] and pixels. The pictures end."""
    pictures = [backend.start(request) for request in requests]
    while going := [picture for picture in pictures if picture.steps_done < picture.steps_total]:
        backend.denoise(going, min(picture.steps_total - picture.steps_done for picture in going))
    backend.wait(pictures)
    for picture in pictures:
        backend.end(picture)
    return list(zip(map(backend.latents, pictures), backend.decode(pictures)))


def difference(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape == (SIZE, SIZE, 3) and a.dtype == b.dtype == np.uint8
    return int(np.abs(a.astype(int) - b).max())


@cache
def pipeline(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = diffusers.DiffusionPipeline.from_pretrained(folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded, loaded.scheduler.config


def reference(folder: Path, request: PictureRequest) -> np.ndarray:
    """The same through `StableDiffusionPipeline.__call__` and its like."""
    pipe, config = pipeline(folder)
    more: dict[str, Any] = {"width": SIZE, "height": SIZE}
    is_xl = "XL" in type(pipe).__name__
    name = "StableDiffusionXL" if is_xl else "StableDiffusion"
    if request.image is not None:
        kind = "Img2Img" if request.mask is None else "Inpaint"
        pipe = getattr(diffusers, f"{name}{kind}Pipeline")(**pipe.components)
        pipe.set_progress_bar_config(disable=True)
        more = {"image": Image.fromarray(request.image), "strength": request.strength}
        if request.mask is not None:
            more |= {"mask_image": Image.fromarray(request.mask), "width": SIZE, "height": SIZE}
    pipe.scheduler = CLASSES[request.scheduler].from_config(config, clip_sample=False)
    return np.asarray(
        pipe(
            request.prompt,
            negative_prompt=request.negative_prompt or None,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator().manual_seed(request.seed),
            **more,
        ).images[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("family", ["sd1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sd2", "sdxl"))])
def test_as_diffusers(backend: Callable, checkpoint: Callable, family: str, name: str) -> None:
    for scheduler in SCHEDULERS:
        request = ask(scheduler, negative_prompt="blue square" if scheduler == "euler" else "")
        assert difference(make(backend(name, family), request)[0], reference(checkpoint(family), request)) <= 2, (
            scheduler
        )


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("family", ["sd1", pytest.param("sdxl", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [None, MASK], ids=["image to image", "inpainting"])
def test_from_an_image_as_diffusers(
    backend: Callable, checkpoint: Callable, mask: np.ndarray | None, family: str, name: str
) -> None:
    for scheduler, strength in zip(SCHEDULERS, (0.6, 0.61, 0.3, 0.99, 1.0)):
        for force in {strength, 1.0} if scheduler == "euler-ancestral" else {strength}:
            request = ask(scheduler, 6, image=PICTURE, mask=mask, strength=force)
            found = difference(make(backend(name, family), request)[0], reference(checkpoint(family), request))
            assert found <= 2, (scheduler, force)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_turbo_as_diffusers(backend: Callable, checkpoint: Callable, name: str) -> None:
    for steps, scheduler in ((1, "euler-ancestral"), (3, "euler-ancestral"), (4, "euler"), (2, "lcm")):
        request = ask(scheduler, steps, guidance=0.0)
        unguided = backend(name, "sd-turbo", guided=False)
        assert difference(make(unguided, request)[0], reference(checkpoint("sd-turbo"), request)) <= 2
    with pytest.raises(RequestError, match=r"guidance_scale is 3.0; this model is served without guidance"):
        unguided.start(ask())


MIXED = (
    ask("ddim", 4),
    ask("euler-ancestral", 3, 7.5, 11, prompt="two green squares"),
    ask("dpm-solver++", 6, 1.0, 5, negative_prompt="blue"),
    ask("lcm", 2, 0.0, 6, prompt="a cat", image=PICTURE),
    ask("euler", 5, 2.0, 9, image=PICTURE, mask=MASK, strength=0.7),
)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_mixed_batch_gives_what_each_gives_alone(backend: Callable, checkpoint: Callable, name: str) -> None:
    made = backend(name, "sd1")
    alone = [make(made, request)[0] for request in MIXED]
    for request, picture in zip(MIXED, alone):
        assert difference(picture, reference(checkpoint("sd1"), request)) <= 2
    for three in (MIXED[:3], MIXED[2:], (MIXED[1], MIXED[4], MIXED[3])):
        for request, picture in zip(three, make(made, *three)):
            assert difference(picture, alone[MIXED.index(request)]) <= 1


@pytest.mark.parametrize("name", BACKENDS)
def test_pictures_join_and_leave_between_steps(backend: Callable, name: str) -> None:
    made = backend(name, "sd1")
    alone = [make(made, request)[0] for request in MIXED[:3]]
    first, second, third = (made.start(request) for request in MIXED[:3])
    made.denoise([first], 2)
    made.denoise([second, first], 1)
    made.denoise([third, first, second], 1)
    assert (first.steps_done, first.steps_total) == (4, 4)
    early = made.decode([first])[0]
    made.denoise([second, third], 1)
    made.denoise([third], 4)
    made.wait([second, third])
    for picture, expected in zip([early, *made.decode([second, third])], alone):
        assert difference(picture, expected) <= 1


@pytest.mark.parametrize("name", BACKENDS)
def test_previews(backend: Callable, name: str) -> None:
    """The guess at the end: not the noisy latents on the way, and the picture itself when it is done."""
    made = backend(name, "sd1")
    picture = made.start(ask("dpm-solver++", 4))
    made.denoise([picture], 2)
    assert difference(made.decode([picture], estimate=True)[0], made.decode([picture])[0]) > 50
    made.denoise([picture], 2)
    assert difference(made.decode([picture], estimate=True)[0], made.decode([picture])[0]) == 0


@pytest.mark.parametrize("name", BACKENDS)
def test_everything_matters(backend: Callable, name: str) -> None:
    """The tiny networks are such that pictures tell whether something was left out."""
    made = backend(name, "sd1")
    plain = make(made, ask())[0]
    for change in (
        {"prompt": "two green cats"},
        {"negative_prompt": "blue"},
        {"guidance": 1.0},
        {"seed": 4},
        {"steps": 6},
    ):
        assert difference(make(made, ask(**change))[0], plain) > 10, change


@pytest.mark.parametrize("name", BACKENDS)
def test_what_the_engine_may_not_ask(backend: Callable, name: str) -> None:
    made = backend(name, "sd1")
    picture = made.start(ask(steps=2))
    for pictures, steps, message in (([picture] * 9, 1, "from 1 to"), ([picture], 3, "2 left"), ([], 1, "from 1 to")):
        with pytest.raises(ValueError, match=message):
            made.denoise(pictures, steps)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_request_may_not_ask(backend: Callable, name: str) -> None:
    made = backend(name, "sd1")
    for change, field, message in (
        ({"steps": 1001}, "num_inference_steps", "the model knows 1000 steps"),
        ({"image": PICTURE, "strength": 0.1}, "strength", "leaves none to run"),
        ({"scheduler": "lcm", "steps": 60}, "num_inference_steps", "at most 50"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            made.start(ask(**change))
        assert caught.value.field == field


@pytest.mark.parametrize("name", BACKENDS)
def test_a_long_prompt_is_cut_with_a_warning(backend: Callable, name: str) -> None:
    made = backend(name, "sd1")
    words = "a red circle on a blue square and one green cat in two small photo"
    picture = made.start(ask(prompt=words, negative_prompt="blue"))
    (warning,) = picture.warnings
    assert warning.startswith("prompt is longer than the 14 tokens") and warning.endswith("photo")
    assert made.start(ask()).warnings == ()
