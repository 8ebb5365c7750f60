"""Text encoders read at other layers than their last, against diffusers' `encode_prompt` with `clip_skip`.

diffusers counts the layers that are left out, AUTOMATIC1111 (`hidden_states[-opts.CLIP_stop_at_last_layers]` in its
modules/sd_hijack_clip.py, then the final norm) which one is read from the end: one more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.request import PictureRequest
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.stable_diffusion.engine.picture_backends import BACKENDS
from tests.stable_diffusion.engine.test_pictures import CLASSES, SIZE, ask, difference, make


def reference(folder: Any, request: PictureRequest) -> np.ndarray:
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = CLASSES[request.scheduler].from_config(pipe.scheduler.config, clip_sample=False)
    # diffusers looks for it, and transformers has had none since 5.0.
    pipe.text_encoder.__dict__.setdefault("text_model", pipe.text_encoder)
    skip = request.clip_skip - 1 or None
    # diffusers reads the negative prompt at the last layer; AUTOMATIC1111 reads both alike.
    prompt, negative = (
        pipe.encode_prompt(text, "cpu", 1, False, clip_skip=skip)[0]
        for text in (request.prompt, request.negative_prompt)
    )
    picture = pipe(
        prompt_embeds=prompt,
        negative_prompt_embeds=negative,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        width=SIZE,
        height=SIZE,
    ).images[0]
    return np.asarray(picture)


@pytest.mark.parametrize("family", ["sd1", pytest.param("sd2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BACKENDS)
def test_as_diffusers(checkpoint: Callable, backend: Callable[..., Backend], name: str, family: Any) -> None:
    """One prompt at three layers, in one batch where there is room."""
    made = backend(name, family)
    assert made.text_layers == 3
    compiled = made.compiles_after_ready
    asked = [ask("ddim", 4, 3.0, clip_skip=skip, negative_prompt="blue") for skip in (1, 2, 3)]
    together = len(asked) <= made.batch_sizes[-1]
    drawn = make(made, *asked) if together else [make(made, each)[0] for each in asked]
    assert made.compiles_after_ready == compiled
    for request, picture in zip(asked, drawn):
        assert difference(picture, reference(checkpoint(family), request)) <= 2, request.clip_skip
    assert difference(drawn[0], drawn[1]) > 2 and difference(drawn[1], drawn[2]) > 2


def test_what_is_refused(backend: Callable[..., Backend]) -> None:
    engine = Engine(backend("jax", "sd1"))
    try:
        with pytest.raises(RequestError, match="clip_skip is 4; this model's text encoder has 3 layers"):
            engine.submit([ask(clip_skip=4)])
        with pytest.raises(RequestError, match="clip_skip is 0; 1 reads the last layer"):
            ask(clip_skip=0)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("family, says", [("sd1", "text encoder has 3 layers"), ("sdxl", "at a fixed layer")])
@pytest.mark.slow
def test_a_config_that_no_request_could_use(checkpoint: Callable, family: Any, says: str, compile_cache: str) -> None:
    config = StableDiffusionConfig(
        model=str(checkpoint(family)),
        clip_skip=4,
        sizes=("64x64",),
        max_batch_size=1,
        backend="torch",
        scheduler="euler",
    )
    with pytest.raises(ValueError, match=says):
        Engine.load(config)


@pytest.mark.slow
def test_xl_has_a_layer_of_its_own(backend: Callable[..., Backend]) -> None:
    engine = Engine(backend("jax", "sdxl"))
    try:
        with pytest.raises(RequestError, match="are read at a fixed layer; leave it out"):
            engine.submit([replace(ask(), clip_skip=2)])
    finally:
        engine.shutdown()
