"""Z-Image behind the dialects: OpenAI's client, and AUTOMATIC1111's paths."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from apps.stable_diffusion.engine.backends.choice import open_backend
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.engine import Engine
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.stable_diffusion.engine.flow.conftest import SIZES
from tests.stable_diffusion.serve.picture_serving import MODEL, LocalServer, far_apart, local_server, opened


@pytest.fixture(scope="module")
def studio(made: JaxBackend) -> Iterator[LocalServer]:
    with local_server(made, scheduler="euler", guidance_scale=2.0, num_inference_steps=3) as server:
        yield server


def test_sizes_side_by_side_and_alone(studio: LocalServer, made: JaxBackend) -> None:
    compiled = made.compiles_after_ready
    with openai.OpenAI(base_url=f"{studio.url}/v1", api_key="none", max_retries=0, timeout=60) as client:

        def draw(i: int) -> str:
            width, height = SIZES[i]
            extra = {"seed": i, "steps": 3 + i, "guidance_scale": float(i)}
            size = f"{width}x{height}"
            return client.images.generate(model=MODEL, prompt="a cat", size=size, extra_body=extra).data[0].b64_json

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(draw, range(len(SIZES))))
        for i, png in enumerate(together):
            assert opened(png).size == SIZES[i]
            assert far_apart(png, draw(i)) <= 1
    assert made.compiles_after_ready == compiled


def test_its_samplers(studio: LocalServer) -> None:
    with httpx.Client(base_url=f"{studio.url}/sdapi/v1", timeout=60) as client:
        assert [each["name"] for each in client.get("/samplers").json()] == ["Euler"]
        body = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}
        assert len(client.post("/txt2img", json=body | {"sampler_name": "Euler"}).json()["images"]) == 1
        refused = client.post("/txt2img", json=body | {"sampler_name": "DDIM"})
        assert refused.status_code == 400 and "use euler" in refused.text


@pytest.mark.slow
def test_configs_that_do_not_fit(z_image: Path, compile_cache: str) -> None:
    fits = {"model": str(z_image), "sizes": ("64x64",), "dtype": "float32", "compile_cache": compile_cache}
    with pytest.raises(ValueError, match=r"scheduler is ddim, which cannot serve .*: set it to euler"):
        Engine.load(StableDiffusionConfig(**fits))
    with pytest.raises(ValueError, match="size 34x32: this model needs multiples of 4"):
        open_backend(str(z_image), sizes=[(34, 32)])
    with pytest.raises(ValueError, match="size 32x600: this model makes at most 256x256"):
        open_backend(str(z_image), sizes=[(32, 600)])
    with pytest.raises(ValueError, match="backend torch makes pictures with UNets only: Z-Image needs jax"):
        open_backend(str(z_image), sizes=[(32, 32)], backend="torch")
