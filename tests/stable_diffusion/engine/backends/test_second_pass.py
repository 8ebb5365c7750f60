"""A second pass over enlarged latents ("hires fix"): the whole engine against diffusers' pipelines.

The oracle: `StableDiffusionPipeline` with output_type="latent", torch's `interpolate` as AUTOMATIC1111's
`sample_hr_pass` (modules/processing.py) calls it, then `StableDiffusionImg2ImgPipeline`, which takes latents as they
are, with a generator of the same seed.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.job import Finished, Preview, Step
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest, SecondPass
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.engine.test_pictures import CLASSES, SIZE, ask, pipeline

LARGE = 48


@pytest.fixture(scope="module", params=["jax", "torch"])
def engine(request: Any, checkpoint: Callable[[str], Path], compile_cache: str) -> Iterator[Engine]:
    settings: dict[str, Any] = {"sizes": [(SIZE, SIZE), (LARGE, LARGE)], "max_batch_size": 2, "dtype": "float32"}
    if request.param == "jax":
        backend: Any = JaxBackend(checkpoint("sd1"), compile_cache=compile_cache, **settings)
    else:
        backend = TorchBackend(checkpoint("sd1"), device="cpu", **settings)
    backend.compile()
    made = Engine(backend)
    yield made
    made.shutdown()


def reference(folder: Path, request: PictureRequest) -> np.ndarray:
    pipe, config = pipeline(folder)
    second = request.second_pass

    def run(pipe: Any, **more: Any) -> Any:
        pipe.set_progress_bar_config(disable=True)
        pipe.scheduler = CLASSES[request.scheduler].from_config(config, clip_sample=False)
        return pipe(
            request.prompt,
            negative_prompt=request.negative_prompt or None,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator().manual_seed(request.seed),
            **more,
        ).images[0]

    steps = request.num_inference_steps
    latents = run(pipe, num_inference_steps=steps, width=SIZE, height=SIZE, output_type="latent")
    larger = torch.nn.functional.interpolate(
        latents[None], size=(LARGE // 2, LARGE // 2), mode=second.interpolation, antialias=second.antialias
    )
    again = diffusers.StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
    more = {"image": larger, "strength": second.strength, "num_inference_steps": second.num_inference_steps or steps}
    return np.asarray(run(again, **more))


REQUESTS = [
    ask("ddim", 4, second_pass=SecondPass(LARGE, LARGE, 0.5)),
    ask("euler", 3, seed=8, prompt="two blue cats", second_pass=SecondPass(LARGE, LARGE, 0.75, 8, "bicubic", True)),
    ask("dpm-solver++", 4, seed=9, negative_prompt="red", second_pass=SecondPass(LARGE, LARGE, 1, 3, "nearest-exact")),
    ask("euler-ancestral", 5, seed=2, second_pass=SecondPass(LARGE, LARGE, 0.6, 5, "nearest")),
    ask("euler", 4, seed=1, prompt="a green square"),
]


def finished(engine: Engine, requests: list[PictureRequest]) -> list[Finished]:
    events = [event for event in engine.submit(requests) if isinstance(event, Finished)]
    return sorted(events, key=lambda event: event.picture)


@pytest.mark.slow
def test_as_diffusers(engine: Engine, checkpoint: Callable[[str], Path]) -> None:
    """All in one job, among one without a second pass: each as if alone."""
    drawn = finished(engine, REQUESTS)
    for request, event in zip(REQUESTS, drawn):
        assert event.request == request
        if request.second_pass is None:
            assert event.pixels.shape == (SIZE, SIZE, 3)
            continue
        expected = reference(checkpoint("sd1"), request)
        assert event.pixels.shape == expected.shape == (LARGE, LARGE, 3)
        assert np.abs(event.pixels.astype(int) - expected).max() <= 2, request
    assert engine.stats().compiles_after_ready == 0 and engine.stats().waiting == engine.stats().running == 0


def test_steps_and_previews(engine: Engine) -> None:
    request = ask("ddim", 6, second_pass=SecondPass(LARGE, LARGE, 0.5, 8))
    events = list(engine.submit([request], previews=2))
    steps = [event.step for event in events if isinstance(event, Step)]
    assert steps == sorted(steps) and {event.steps for event in events if isinstance(event, Step)} == {10}
    assert steps[-1] == 10 and events[-1].steps == 10
    assert [event.number for event in events if isinstance(event, Preview)] == [0, 1]


def test_pictures_that_leave_between_their_passes() -> None:
    """Counts come to rest, whether a job is aborted in its first pass, between both, or in its second."""
    backend = LoopBackend(step_s=0.001)
    engine = Engine(backend, max_waiting=4)
    request = PictureRequest("x", 16, 16, 4, 3.0, "ddim", second_pass=SecondPass(32, 16, 0.5))
    for after in range(7):
        job = engine.submit([request] * 3)
        for event in job:
            if isinstance(event, Step) and event.step >= after:
                break
        job.abort()
        with contextlib.suppress(Exception):
            list(job)
    assert len(finished(engine, [request] * 3)) == 3
    stats = engine.stats()
    assert (stats.waiting, stats.running) == (0, 0) and stats.pictures + stats.aborted == 8 * 3
    engine.shutdown()


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"second_pass": SecondPass(64, 64)}, "size 64x64 is not served here"),
        (
            {"image": np.zeros((16, 16, 3), np.uint8), "second_pass": SecondPass(32, 16)},
            "begin with noise, not with an image",
        ),
        ({"second_pass": (32, 16, 1.5)}, "strength is 1.5; it must be from 0 to 1"),
        ({"second_pass": (32, 16, 0.5, 0)}, "the second pass has 0 steps"),
    ],
)
def test_what_cannot_be(wrong: dict[str, Any], says: str) -> None:
    engine = Engine(LoopBackend())
    with pytest.raises(RequestError, match=says):
        if isinstance(wrong["second_pass"], tuple):
            SecondPass(*wrong["second_pass"])
        engine.submit([PictureRequest("x", 16, 16, 4, 3.0, "ddim", **wrong)])
    engine.shutdown()


def test_second_passes_with_loras() -> None:
    """With a single slot, pictures of two combinations in turns: all of them end, and the slot is free again."""
    backend = LoopBackend()
    engine = Engine(backend, max_waiting=16)
    second = SecondPass(32, 16, 0.5)
    wanted = [
        PictureRequest("x", 16, 16, 3, 3.0, "ddim", loras=(LoraUse(name),), second_pass=second) for name in "abab"
    ]
    assert len(finished(engine, wanted)) == 4
    assert not any(backend.slots._users.values())
    engine.shutdown()
