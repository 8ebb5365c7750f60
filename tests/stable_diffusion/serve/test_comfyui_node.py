"""The ComfyUI node by its class contract, as ComfyUI's nodes.py loads and calls it, against a live server.

The contract read: ComfyUI's custom_nodes/example_node.py.example. ComfyUI itself is not installed here.
"""

import base64
import importlib.util
import inspect
import io
import json
import sys
import types
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import openai
import psutil
import pytest
import torch
from PIL import Image

from apps.stable_diffusion.engine.controlnets.use import KnownControls
from apps.stable_diffusion.engine.request import PictureRequest
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import local_server

FILE = Path(__file__).parents[3] / "clients" / "comfyui_podslice.py"
WIDGETS = {"INT", "FLOAT", "STRING", "IMAGE", "MASK"}


@pytest.fixture(scope="module")
def nodes() -> Any:
    """The module, loaded by its path alone."""
    spec = importlib.util.spec_from_file_location("comfyui_podslice_as_custom_node", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def defaults(node: Any) -> dict[str, Any]:
    """What ComfyUI passes for widgets that nobody touched."""
    found = {}
    for group in node.INPUT_TYPES().values():
        for name, (kind, *options) in group.items():
            if kind not in ("IMAGE", "MASK"):
                found[name] = kind[0] if isinstance(kind, list) else options[0]["default"]
    return found


def run(node: Any, **inputs: Any) -> torch.Tensor:
    [image] = getattr(node(), node.FUNCTION)(**defaults(node) | inputs)
    assert image.dtype == torch.float32 and image.ndim == 4 and image.min() >= 0 and image.max() <= 1
    return image


def test_the_contract(nodes: Any) -> None:
    assert set(nodes.NODE_CLASS_MAPPINGS) == set(nodes.NODE_DISPLAY_NAME_MAPPINGS)
    for node in nodes.NODE_CLASS_MAPPINGS.values():
        inputs = node.INPUT_TYPES()
        assert set(inputs) == {"required", "optional"} and node.RETURN_TYPES == ("IMAGE",) and node.CATEGORY
        takes = inspect.signature(getattr(node, node.FUNCTION)).parameters
        for name, (kind, *options) in (inputs["required"] | inputs["optional"]).items():
            assert name in takes or "common" in takes
            assert isinstance(kind, list) or kind in WIDGETS
            if options and "min" in options[0]:
                assert options[0]["min"] <= options[0]["default"] <= options[0].get("max", 2**64)
            json.dumps(options)  # it goes to the browser


def test_text_to_image(studio: Any, nodes: Any) -> None:
    node = nodes.PodsliceTextToImage
    images = run(node, url=studio.url + "/", prompt="a (red:1.3) circle", seed=7, pictures=2, width=24, height=16)
    assert images.shape == (2, 16, 24, 3)
    for i, image in enumerate(images):
        params = {"prompt": "a (red:1.3) circle", "emphasis": "true", "seed": 7 + i, "size": "24x16"}
        png = httpx.get(f"{studio.url}/imagine", params=params).content
        pixels = np.asarray(Image.open(io.BytesIO(png)))
        assert np.abs((image.numpy() * 255).round() - pixels).max() <= 1
    assert run(node, url=studio.url, prompt="a cat").shape == (1, 16, 16, 3), "the server's default size"


def test_image_to_image_and_inpainting(studio: Any, client: openai.OpenAI, nodes: Any) -> None:
    """As the same by OpenAI's client. In ComfyUI's masks 1 is drawn anew, in OpenAI's what is transparent."""
    node = nodes.PodsliceImageToImage
    start = torch.rand((2, 16, 24, 3), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros((1, 16, 24))
    mask[:, :, 12:] = 1
    settings = {"guidance_scale": 4.0, "scheduler": "euler"}
    plain = run(node, url=studio.url, prompt="a cat", image=start, seed=5, denoise=0.6, **settings)
    painted = run(node, url=studio.url, prompt="a cat", image=start, seed=5, denoise=0.6, mask=mask, **settings)
    seen = Image.fromarray((255 * (1 - mask[0].numpy())).astype(np.uint8))
    alpha = Image.new("RGBA", (24, 16))
    alpha.putalpha(seen)
    for drawn, masks in ((plain, {}), (painted, {"mask": as_file(alpha)})):
        assert drawn.shape == start.shape
        for i, (each, image) in enumerate(zip(drawn, start)):
            own = Image.fromarray((image.numpy() * 255).round().astype(np.uint8))
            more = {"seed": 5 + i, "strength": 0.6, "guidance_scale": 4.0, "scheduler": "euler"}
            reply = client.images.edit(prompt="a cat", image=as_file(own), size="24x16", extra_body=more, **masks)
            expected = np.asarray(Image.open(io.BytesIO(base64.b64decode(reply.data[0].b64_json))))
            assert np.abs((each.numpy() * 255).round() - expected).max() <= 1
    assert (painted - plain).abs().max() > 0.05


def test_a_controlnet(nodes: Any) -> None:
    asked: list[PictureRequest] = []
    backend = LoopBackend(at_start=asked.append, controls=KnownControls(("canny",)))
    maps = torch.zeros((2, 16, 16, 3))
    maps[1] = 1
    with local_server(backend) as server:
        node, fields = nodes.PodsliceTextToImage, {"url": server.url, "prompt": "a cat"}
        run(node, **fields, controlnet="canny:0.8", control_image=maps)
        run(nodes.PodsliceImageToImage, **fields, image=maps, controlnet="canny", control_image=maps)
        [[first], [second], [third]] = [request.controls for request in asked]
        assert (first.name, first.weight, second.weight) == ("canny", 0.8, 1.0)
        assert first.image.max() == 0 and second.image.max() == 0 and third.image.min() == 255
        for inputs, says in (
            ({"controlnet": "canny"}, "connect one to control_image"),
            ({"control_image": maps}, "name the ControlNet that reads it"),
            ({"controlnet": "canny:x", "control_image": maps}, "'canny:x' is not a name, or name:weight"),
        ):
            with pytest.raises(ValueError, match=says):
                run(node, **fields, **inputs)


def as_file(image: Image.Image) -> tuple[str, bytes]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "image.png", file.getvalue()


@pytest.mark.parametrize(
    "inputs, says",
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "a", "width": 128}, "size 128x128 is not served here"),
        ({"prompt": "a", "loras": "ink:0.8"}, "this server has no LoRA"),
        ({"prompt": "a (b:1.2.3)"}, "'1.2.3' is no number"),
        ({"prompt": "a", "url": "http://127.0.0.1:9"}, "no answer from http://127.0.0.1:9"),
    ],
)
def test_the_user_sees_the_servers_words(studio: Any, nodes: Any, inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        run(nodes.PodsliceTextToImage, **{"url": studio.url} | inputs)
    with pytest.raises(ValueError, match="'ink:x' is not a name, or name:weight"):
        run(nodes.PodsliceTextToImage, url=studio.url, prompt="a", loras="ink:x")


def test_progress_and_interruption(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`comfy.utils.ProgressBar` and `throw_exception_if_processing_interrupted`, of which stand-ins are here."""

    class Interrupted(Exception):
        pass

    shown: list[tuple[int, int]] = []

    def check() -> None:
        if len(shown) == 2:
            raise Interrupted

    bar = type(
        "ProgressBar", (), {"__init__": lambda self, n: None, "update_absolute": lambda self, *a: shown.append(a)}
    )
    utils, management = types.ModuleType("comfy.utils"), types.ModuleType("comfy.model_management")
    utils.ProgressBar, management.throw_exception_if_processing_interrupted = bar, check
    comfy = types.ModuleType("comfy")
    comfy.utils, comfy.model_management = utils, management
    for name, module in {"comfy": comfy, "comfy.utils": utils, "comfy.model_management": management}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with local_server(LoopBackend(step_s=0.05)) as slow:
        with pytest.raises(Interrupted) as kept:  # as ComfyUI keeps it, with its frames
            run(nodes.PodsliceTextToImage, url=slow.url, prompt="a cat", steps=100, pictures=2)
        assert len(shown) == 2 and all(0 < done <= total == 200 for done, total in shown)
        port = urlsplit(slow.url).port
        assert not [c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port], (
            "Serve sees that"
        )
    assert kept.tb
