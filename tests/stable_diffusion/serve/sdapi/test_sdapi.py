"""AUTOMATIC1111's API: its bodies and replies, its progress and interruption, its kind of errors."""

import asyncio
import base64
import json
import threading
from typing import Any

import httpx
import numpy as np
import pytest

from apps.serving.ingress.api_keys import principals
from apps.stable_diffusion.http.app import http_app
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import (
    MODEL,
    far_apart,
    local_server,
    noise,
    opened,
    png_of,
    wait_until,
)


def post(studio: Any, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{studio.url}/sdapi/v1/{path}", json=body, timeout=60)


def drawn(studio: Any, path: str = "txt2img", **fields: Any) -> tuple[list[str], dict[str, Any]]:
    """The images, and what `info` says of them."""
    reply = post(studio, path, {"prompt": "a red circle", "steps": 5, "seed": 7} | fields)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert set(body) == {"images", "parameters", "info"}
    return body["images"], json.loads(body["info"])


def b64(png: bytes) -> str:
    return base64.b64encode(png).decode()


def test_txt2img(studio):
    body = {"negative_prompt": "blue", "cfg_scale": 6, "width": 24, "height": 16, "sampler_name": "Euler a"}
    images, info = drawn(studio, **body, batch_size=2, n_iter=1)
    assert [opened(image).size for image in images] == [(24, 16)] * 2
    assert info["all_seeds"] == [7, 8] and info["seed"] == 7 and info["steps"] == 5
    assert info["sampler_name"] == "Euler a" and info["sd_model_name"] == MODEL and not info["interrupted"]
    assert info["infotexts"] == [opened(image).text["parameters"] for image in images]
    assert "Negative prompt: blue\nSteps: 5, Sampler: Euler a, CFG scale: 6, Seed: 7" in info["infotexts"][0]
    iterations, _ = drawn(studio, **body, batch_size=1, n_iter=2)
    assert all(far_apart(a, b) <= 1 for a, b in zip(images, iterations))


def test_it_draws_what_the_other_faces_draw(studio):
    [image], _ = drawn(studio, sampler_index="DPM++ 2M", width=16, height=16, cfg_scale=4.0)
    asked = {"prompt": "a red circle", "num_inference_steps": 5, "seed": 7, "guidance_scale": 4}
    same = httpx.get(f"{studio.url}/imagine", params=asked | {"scheduler": "dpm-solver++"}, timeout=60)
    assert far_apart(base64.b64decode(image), same.content) <= 1


def test_a_random_seed_and_the_defaults(studio):
    reply = post(studio, "txt2img", {"prompt": "a cat", "seed": -1, "send_images": False, "save_images": True})
    info = json.loads(reply.json()["info"])
    assert reply.json()["images"] == [] and info["seed"] != -1
    assert (info["width"], info["height"], info["steps"], info["cfg_scale"]) == (16, 16, 4, 7.5)
    assert reply.json()["parameters"] == {
        "prompt": "a cat", "seed": -1, "batch_size": 1, "n_iter": 1, "send_images": False
    }  # fmt: skip


def test_img2img(studio):
    image = b64(png_of(noise(16, 16)))
    [whole], info = drawn(studio, "img2img", init_images=[f"data:image/png;base64,{image}"])
    assert info["denoising_strength"] == 0.75
    mask = np.where(np.arange(16)[None, :, None] < 8, 255, 0) * np.ones((16, 1, 3))
    [white], _ = drawn(studio, "img2img", init_images=[image], mask=b64(png_of(mask)), mask_blur=4)
    flipped = {"mask": b64(png_of(255 - mask)), "inpainting_mask_invert": 1}
    [inverted], _ = drawn(studio, "img2img", init_images=[image], **flipped)
    assert far_apart(whole, white) > 0 and far_apart(white, inverted) <= 1
    [weak], _ = drawn(studio, "img2img", init_images=[image], denoising_strength=0.3)
    assert far_apart(whole, weak) > 0
    wide = b64(png_of(noise(60, 20)))
    [stretched], _ = drawn(studio, "img2img", init_images=[wide], resize_mode=0)
    [cropped], _ = drawn(studio, "img2img", init_images=[wide], resize_mode=1)
    assert far_apart(stretched, cropped) > 0


def test_what_programs_ask_first(studio):
    def get(path: str) -> Any:
        return httpx.get(f"{studio.url}/sdapi/v1/{path}").json()

    assert {"Euler a", "DDIM", "DPM++ 2M", "Euler", "LCM"} == {sampler["name"] for sampler in get("samplers")}
    assert [model["title"] for model in get("sd-models")] == [MODEL]
    assert get("options")["sd_model_checkpoint"] == MODEL and get("schedulers")[0]["label"] == "Automatic"
    assert post(studio, "options", {"sd_model_checkpoint": MODEL, "anything": 1}).status_code == 200
    assert post(studio, "options", {"sd_model_checkpoint": "v1-5"}).status_code == 404
    idle = get("progress")
    assert idle["progress"] == 0 and idle["state"]["job_count"] == 0 and idle["current_image"] is None


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("txt2img", {"steps": 500}, "steps is 500; it can be 1 to 100"),
        ("txt2img", {"cfg_scale": -2}, "cfg_scale is -2"),
        ("txt2img", {"sampler_name": "UniPC"}, "sampler_name 'UniPC' is not one of DDIM"),
        ("txt2img", {"scheduler": "Karras"}, "'Karras' is not offered"),
        ("txt2img", {"batch_size": 3, "n_iter": 2}, "batch_size * n_iter is 6"),
        ("txt2img", {"width": 512, "height": 512}, "16x16, 24x16"),
        ("txt2img", {"restore_faces": True}, "no face restoration"),
        ("txt2img", {"seed": 2**40}, "seed is 1099511627776"),
        ("img2img", {}, "init_images"),
        ("img2img", {"init_images": ["%%%"]}, "init_images is not valid base64"),
        ("img2img", {"init_images": [b64(b"no picture")]}, "init_images is not a readable"),
        (
            "img2img",
            {"init_images": [b64(png_of(noise(8, 8)))], "denoising_strength": 1.5},
            "denoising_strength is 1.5",
        ),
        ("img2img", {"init_images": [b64(png_of(noise(8, 8)))], "resize_mode": 2}, "stretch"),
    ],
)
def test_refusals(studio, path, fields, says):
    reply = post(studio, path, {"prompt": "a cat"} | fields)
    assert reply.status_code == 400 and set(reply.json()) == {"error", "detail", "body", "errors"}
    assert says in reply.json()["detail"], reply.text


def test_a_body_that_is_not_read_is_refused_in_its_own_format(studio):
    headers = {"content-encoding": "br", "content-type": "application/json"}
    reply = httpx.post(f"{studio.url}/sdapi/v1/txt2img", content=b"{}", headers=headers)
    assert reply.status_code == 415 and set(reply.json()) == {"error", "detail", "body", "errors"}


def test_another_model_is_not_found(studio):
    reply = post(studio, "txt2img", {"prompt": "a cat", "override_settings": {"sd_model_checkpoint": "v1-5"}})
    assert reply.status_code == 404 and MODEL in reply.json()["detail"]
    named = {"sd_model_checkpoint": f"{MODEL} [abc]", "CLIP_stop_at_last_layers": 1, "grid_format": "jpg"}
    assert post(studio, "txt2img", {"prompt": "a cat", "override_settings": named}).status_code == 200


def test_progress_and_interruption():
    backend = LoopBackend(step_s=0.2)
    with local_server(backend, max_images_per_request=5) as server:
        replies = []
        body = {"prompt": "slow", "steps": 60, "batch_size": 5, "seed": 0}
        asking = threading.Thread(target=lambda: replies.append(post(server, "txt2img", body)))
        asking.start()

        def progress() -> Any:
            return httpx.get(f"{server.url}/sdapi/v1/progress").json()

        under_way = wait_until(lambda: (now := progress())["state"]["sampling_step"] >= 0 < now["progress"] and now)
        assert 0 < under_way["progress"] < 0.5 and under_way["eta_relative"] > 0
        assert under_way["state"]["sampling_steps"] == 60 and under_way["state"]["job_count"] == 1
        assert post(server, "interrupt", {}).json() == {}
        asking.join(60)
        [reply] = replies
        assert reply.status_code == 200 and reply.json()["images"] == []
        assert json.loads(reply.json()["info"])["interrupted"]
        assert progress()["state"]["job_count"] == 0 and server.engine.stats().running == 0


@pytest.mark.slow
def test_another_keys_pictures_are_neither_seen_nor_stopped():
    """Alice's pictures, asked for alone and while Bob looks for progress and interrupts, are the same."""
    backend = LoopBackend(step_s=0.05)
    with local_server(backend) as server:
        app = http_app(server.model, principals(["alice=a", "bob=b"]))

        async def call() -> tuple[Any, Any, Any]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test/sdapi/v1") as client:

                def asked(key: str, method: str, path: str, **body: Any) -> Any:
                    return client.request(method, path, headers={"x-api-key": key}, **body)

                body = {"prompt": "slow", "steps": 40, "seed": 0}
                alone = (await asked("a", "POST", "/txt2img", json=body)).json()
                drawing = asyncio.create_task(asked("a", "POST", "/txt2img", json=body))
                while (await asked("a", "GET", "/progress")).json()["progress"] == 0:
                    await asyncio.sleep(0.01)
                seen = (await asked("b", "GET", "/progress")).json()
                await asked("b", "POST", "/interrupt")
                return alone, seen, (await drawing).json()

        alone, seen, beside = asyncio.run(call())
        assert seen["progress"] == 0 and seen["state"]["job_count"] == 0
        assert beside["images"] == alone["images"] and not json.loads(beside["info"])["interrupted"]
