"""AUTOMATIC1111's hires fix over HTTP; what it draws is compared with diffusers in `test_second_pass.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from apps.stable_diffusion.engine.backends.choice import open_backend
from apps.stable_diffusion.engine.job import Finished
from apps.stable_diffusion.engine.request import PictureRequest, SecondPass
from tests.stable_diffusion.serve.picture_serving import LocalServer, local_server, opened


@pytest.fixture(scope="module")
def studio(checkpoint: Path) -> Iterator[LocalServer]:
    settings: dict[str, Any] = {"sizes": ((16, 16), (24, 24), (32, 32)), "max_batch_size": 2, "dtype": "float32"}
    with local_server(open_backend(str(checkpoint), backend="torch", **settings), model=str(checkpoint)) as server:
        yield server


def post(studio: LocalServer, path: str = "txt2img", **fields: Any) -> httpx.Response:
    body = {"prompt": "a red circle", "steps": 4, "seed": 7, "enable_hr": True} | fields
    return httpx.post(f"{studio.url}/sdapi/v1/{path}", json=body, timeout=60)


NEAREST = {"hr_resize_x": 24, "hr_second_pass_steps": 6, "hr_upscaler": "latent (nearest-exact)"}
BOTH = {"hr_resize_x": 32, "hr_resize_y": 32, "denoising_strength": 0, "hr_sampler_name": "Use same sampler"}
BICUBIC = {"hr_scale": 1.5, "denoising_strength": 0.5, "hr_upscaler": "Latent (bicubic)"}


@pytest.mark.parametrize(
    "fields, second",
    [
        ({}, SecondPass(32, 32, 0.75)),
        (BICUBIC, SecondPass(24, 24, 0.5, None, "bicubic")),
        (NEAREST, SecondPass(24, 24, 0.75, 6, "nearest-exact")),
        (BOTH, SecondPass(32, 32, 0)),
    ],
)
def test_fields(studio: LocalServer, fields: dict[str, Any], second: SecondPass) -> None:
    answer = post(studio, **fields).json()
    info = json.loads(answer["info"])
    picture = np.asarray(opened(answer["images"][0]))
    config = studio.model.config
    request = PictureRequest(
        "a red circle", 16, 16, 4, config.guidance_scale, config.scheduler, seed=7, emphasis=True, second_pass=second
    )
    [expected] = [event.pixels for event in studio.engine.submit([request]) if isinstance(event, Finished)]
    assert np.abs(picture.astype(int) - expected).max() <= 1
    assert info["denoising_strength"] == second.strength and answer["parameters"]["enable_hr"]
    assert f"Hires resize: {second.width}x{second.height}, Hires steps: " in info["infotexts"][0]


@pytest.mark.parametrize(
    "path, fields, says",
    [
        ("txt2img", {"hr_scale": 3}, "48x48 is not served here"),
        ("txt2img", {"hr_upscaler": "R-ESRGAN 4x+"}, "is not offered; use one of: Latent, "),
        ("txt2img", {"hr_resize_x": 32, "hr_resize_y": 24}, "32x24 has other proportions than 16x16"),
        ("txt2img", {"hr_prompt": "a cat"}, "hr_prompt: 'a cat' is not offered"),
        ("txt2img", {"hr_checkpoint_name": "other"}, "hr_checkpoint_name: 'other' is not offered"),
        ("txt2img", {"denoising_strength": 1.5}, "denoising_strength is 1.5"),
        ("txt2img", {"hr_second_pass_steps": 1000}, "is 1000; it can be 1 to 100 steps"),
        ("img2img", {"init_images": ["x"]}, "enable_hr: is of text to image"),
    ],
)
def test_what_is_refused(studio: LocalServer, path: str, fields: dict[str, Any], says: str) -> None:
    reply = post(studio, path, **fields)
    assert reply.status_code == 400 and says in reply.json()["detail"]
    if path == "txt2img":
        assert post(studio, **fields, enable_hr=False).status_code == 200, "of no effect"


def test_the_list(studio: LocalServer) -> None:
    names = [each["name"] for each in httpx.get(f"{studio.url}/sdapi/v1/latent-upscale-modes").json()]
    assert names[0] == "Latent" and len(names) == 6
    assert all(post(studio, hr_upscaler=name, steps=1).status_code == 200 for name in names)
