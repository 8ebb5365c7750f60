"""The application as Serve sees it: its builder, its options, and one deployment with everything in front of it."""

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from apps.serving.replica_options import options
from apps.stable_diffusion.server import build
from ray_configs.stable_diffusion import DEMO_MODEL, StableDiffusionConfig
from tests.stable_diffusion.serve.picture_serving import MODEL, far_apart, opened, wait_until

REPOSITORY = Path(__file__).parents[3]


def serve_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `serve` from the repository's root."""
    command = [sys.executable, "-m", "ray.serve.scripts", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def pictures_url(serve_url: str, checkpoint: Path) -> Iterator[str]:
    """The tiny model under /pictures."""
    from ray import serve

    fields = {"sizes": "64x64", "max_batch_size": 2, "dtype": "float32", "backend": "torch"}
    application = build(StableDiffusionConfig(model=str(checkpoint), **fields))
    serve.run(application, name="pictures", route_prefix="/pictures")
    yield f"{serve_url}/pictures"
    serve.delete("pictures")


@pytest.fixture
def stats(pictures_url: str) -> Callable[[], dict[str, Any]]:
    return lambda: httpx.get(f"{pictures_url}/health").json()["models"][MODEL]


@pytest.mark.slow
def test_the_official_client_through_serve(pictures_url):
    with openai.OpenAI(base_url=f"{pictures_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        extra = {"seed": 1, "num_inference_steps": 2}
        images = client.images.generate(model=MODEL, prompt="a red circle", n=2, size="64x64", extra_body=extra).data
        assert [opened(image.b64_json).size for image in images] == [(64, 64)] * 2
        stream = client.images.generate(
            model=MODEL, prompt="a red circle", stream=True, partial_images=1, extra_body=extra
        )
        *_, preview, last = stream
        assert preview.type == "image_generation.partial_image" and last.type == "image_generation.completed"
        assert far_apart(last.b64_json, images[0].b64_json) <= 1
        with pytest.raises(openai.BadRequestError, match="64x64"):
            client.images.generate(model=MODEL, prompt="x", size="512x512")


def test_the_client_program_through_serve(pictures_url, tmp_path):
    command = [sys.executable, str(REPOSITORY / "clients" / "sd_req.py"), "--url", pictures_url, "--save_pictures"]
    done = subprocess.run([*command, "--steps", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "8 of 8 pictures" in done.stdout, done.stdout + done.stderr
    with Image.open(tmp_path / "diffusion_results.png") as picture:
        assert picture.size == (4 * 64, 2 * 64)


@pytest.mark.parametrize("how", ["png", "stream", "openai", "web ui"])
def test_leaving_frees_the_picture(pictures_url, stats, how):
    url = httpx.URL(pictures_url)
    query = "prompt=x&num_inference_steps=100" + ("&stream=true" if how == "stream" else "")
    body = b'{"prompt": "x", "steps": 100}'
    path = {"openai": "/v1/images/generations", "web ui": "/sdapi/v1/txt2img"}.get(how)
    first = f"POST {url.path}{path}" if path else f"GET {url.path}/imagine?{query}"
    head = f"{first} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nContent-Length: {len(body) if path else 0}\r\n\r\n"

    def aborted() -> bool:
        """Whether a picture whose client has left was not made; where the machine is busy it may have been by then."""
        before = stats()
        with socket.create_connection((url.host, url.port)) as connection:
            connection.sendall(head.encode() + (body if path else b""))
            wait_until(lambda: stats()["steps"] > before["steps"])
        wait_until(lambda: not stats()["running"])
        return stats()["aborted"] == before["aborted"] + 1

    assert any(aborted() for _ in range(5))


def test_metrics_reach_rays_endpoint(pictures_url, stats):
    import ray

    httpx.get(f"{pictures_url}/imagine", params={"prompt": "x", "num_inference_steps": 2}, timeout=60)
    port = ray.nodes()[0]["MetricsExportPort"]
    wanted = {
        "podslice_pictures_running",
        "podslice_pictures_waiting",
        "podslice_pictures_total",
        "podslice_pictures_aborted_total",
        "podslice_denoising_steps_total",
        "podslice_denoising_step_s_count",
        "podslice_picture_batch_size_count",
        "podslice_picture_s_count",
        "podslice_compiles_after_ready",
    }

    def published() -> dict[str, float] | None:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        lines = re.findall(r"^ray_(podslice_\w+)\{([^}]*)\} (\S+)$", page, re.MULTILINE)
        values = {name: float(value) for name, tags, value in lines if f'model="{MODEL}"' in tags}
        return values if wanted <= set(values) and values["podslice_pictures_total"] > 0 else None

    values = wait_until(published)
    assert values["podslice_picture_s_count"] >= 1 and values["podslice_compiles_after_ready"] == 0


def test_serve_run_refuses_a_bad_argument():
    done = serve_cli("run", "apps.stable_diffusion:build", "batch_wait_timeout_s=1")
    assert done.returncode != 0 and "Extra inputs are not permitted" in done.stderr


def test_a_config_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="WIDTHxHEIGHT in multiples of 8"):
        StableDiffusionConfig(sizes="100x100")
    with pytest.raises(ValueError, match="slice v5e:4x8 has 8 hosts, and a picture model fits on one"):
        build(StableDiffusionConfig(slice="v5e:4x8"))


def test_the_demo_application():
    from ray import serve

    from apps.stable_diffusion import app, build

    assert isinstance(app, serve.Application) and isinstance(build(StableDiffusionConfig()), serve.Application)
    demo = app._bound_deployment.init_args[0]
    assert demo.model == DEMO_MODEL and demo.sizes == ("64x64",) and demo.served_name == "podslice-sd-demo"


def test_options_on_a_slice():
    tpu = options(StableDiffusionConfig(slice="v4:2x2x1", max_replicas=10, target_ongoing_requests=3))
    assert tpu["ray_actor_options"]["resources"] == {"TPU": 4}
    assert tpu["ray_actor_options"]["label_selector"] == {"ray.io/tpu-pod-type": "v4-8"}
    assert tpu["autoscaling_config"]["max_replicas"] == 10 and tpu["max_queued_requests"] == 128
    assert tpu["backpressure_config"] == {"status_code": 503, "retry_after_s": 2.0}
    assert options(StableDiffusionConfig())["ray_actor_options"] == {"num_cpus": 1}


def test_keys_do_not_travel():
    bound = build(StableDiffusionConfig(api_keys="secret-one,secret-two"))._bound_deployment
    assert "secret-one" not in repr((bound.init_args, bound.init_kwargs)) and len(bound.init_args[1]) == 2
