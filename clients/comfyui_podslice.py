"""ComfyUI nodes that have a Podslice server draw: copy this file into ComfyUI/custom_nodes, or link it there.

"Podslice: text to image" and "Podslice: image to image" (with a mask: inpainting) stand where a checkpoint, its text
encoders, a sampler and a VAE would. Steps show on the node; interrupting ComfyUI's queue stops the picture on the
server. Prompts have weights, `(red:1.2)`; LoRAs and a ControlNet have fields of their own, `ink:0.8, face`. 0 and an
empty text mean the server's default. The key, where the server wants one, is the node's api_key or the environment's
PODSLICE_API_KEY.

Needs nothing that ComfyUI does not have. The contract of a node: ComfyUI's custom_nodes/example_node.py.example.
"""

import base64
import io
import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from PIL import Image

TIMEOUT_S = 600  # without a byte: longer than a picture waits for its turn
MAX_SEED = 2**32 - 1
Fields = dict[str, Any]


class PodsliceTextToImage:
    """IMAGE [pictures, height, width, 3] float32, 0 to 1, of a prompt."""

    CATEGORY, FUNCTION, RETURN_TYPES = "Podslice", "draw", ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        size = ("INT", {"default": 0, "min": 0, "max": 2048, "step": 8, "tooltip": "0: the server's default"})
        return {
            "required": _SERVER
            | _PROMPT
            | {"width": size, "height": size, "pictures": ("INT", {"default": 1, "min": 1})},
            "optional": _MORE,
        }

    def draw(self, url: str, width: int, height: int, pictures: int, **common: Any) -> tuple[torch.Tensor]:
        fields = _fields(common) | {"n": pictures}
        if width or height:
            fields["size"] = f"{width or height}x{height or width}"
        return (torch.stack(_pictures(url, "generations", fields, common.get("api_key", ""))),)


class PodsliceImageToImage:
    """IMAGE like the given one, each of a batch with a seed of its own. MASK [.., height, width]: 1 is drawn anew."""

    CATEGORY, FUNCTION, RETURN_TYPES = "Podslice", "draw", ("IMAGE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        strength = ("FLOAT", {"default": 0.75, "min": 0.01, "max": 1.0, "step": 0.01})
        return {
            "required": _SERVER | {"image": ("IMAGE",)} | _PROMPT | {"denoise": strength},
            "optional": {"mask": ("MASK",)} | _MORE,
        }

    def draw(
        self, url: str, image: torch.Tensor, denoise: float, mask: torch.Tensor | None = None, **common: Any
    ) -> tuple[torch.Tensor]:
        masks = None if mask is None else mask.reshape(-1, *mask.shape[-2:])
        drawn = []
        for i, each in enumerate(image):
            height, width = each.shape[:2]
            fields = _fields(common, i) | {"strength": denoise, "size": f"{width}x{height}"}
            fields["seed"] = (fields["seed"] + i) % (MAX_SEED + 1)
            files = {"image": _png(each)}
            if masks is not None:
                files["mask"] = _mask(masks[i % len(masks)], width, height)
            drawn += _pictures(url, "edits", fields, common.get("api_key", ""), files)
        return (torch.stack(drawn),)


_SERVER = {"url": ("STRING", {"default": "http://localhost:8000"})}
_PROMPT = {
    "prompt": ("STRING", {"multiline": True, "dynamicPrompts": True, "default": ""}),
    "negative_prompt": ("STRING", {"multiline": True, "dynamicPrompts": True, "default": ""}),
    "seed": ("INT", {"default": 0, "min": 0, "max": MAX_SEED, "control_after_generate": True}),
    "steps": ("INT", {"default": 0, "min": 0, "max": 1000, "tooltip": "0: the server's default"}),
    "guidance_scale": (
        "FLOAT",
        {"default": -1.0, "min": -1.0, "max": 50.0, "step": 0.1, "tooltip": "-1: the server's default"},
    ),
    "scheduler": (
        ["", "ddim", "euler", "euler-ancestral", "dpm-solver++", "lcm"],
        {"tooltip": "empty: the server's default"},
    ),
}
_MORE = {
    "loras": ("STRING", {"default": "", "tooltip": "names and weights: ink:0.8, face"}),
    "controlnet": ("STRING", {"default": "", "tooltip": "a name, or name and weight: canny:0.8"}),
    "control_image": ("IMAGE", {"tooltip": "the map that the ControlNet reads: edges, depth, a pose"}),
    "api_key": ("STRING", {"default": ""}),
}


def _fields(common: Fields, i: int = 0) -> Fields:
    """The request's fields that both nodes have, for the i-th image of a batch."""
    fields = {"prompt": common["prompt"], "seed": common["seed"], "emphasis": True, "stream": True, "progress": True}
    if common["guidance_scale"] >= 0:
        fields["guidance_scale"] = common["guidance_scale"]
    given = {"negative_prompt": "negative_prompt", "num_inference_steps": "steps", "scheduler": "scheduler"}
    fields |= {name: common[ours] for name, ours in given.items() if common[ours]}
    if loras := [_weighted("loras", part.strip()) for part in common.get("loras", "").split(",") if part.strip()]:
        fields["loras"] = loras
    maps = common.get("control_image")
    if name := common.get("controlnet", "").strip():
        if maps is None:
            raise ValueError("controlnet: it reads a map; connect one to control_image")
        image = base64.b64encode(_png(maps[i % len(maps)])).decode()
        fields["controlnets"] = [_weighted("controlnet", name) | {"image": image}]
    elif maps is not None:
        raise ValueError("control_image: name the ControlNet that reads it in controlnet")
    return fields


def _weighted(field: str, text: str) -> dict[str, Any]:
    name, _, weight = text.partition(":")
    try:
        return {"name": name.strip(), "weight": float(weight or 1)}
    except ValueError:
        raise ValueError(f"{field}: {text!r} is not a name, or name:weight") from None


def _pictures(
    url: str, path: str, fields: Fields, key: str, files: dict[str, bytes] | None = None
) -> list[torch.Tensor]:
    """The pictures that the server draws, in the order of their seeds.

    Raises:
        RuntimeError: it refused or failed; the message is its own.
    """
    pictures, steps, advance = {}, {}, _progress()
    # Closed at once, whoever may keep the exception: an open connection keeps the server drawing.
    with closing(_events(f"{url.rstrip('/')}/v1/images/{path}", fields, key, files)) as events:
        for event in events:
            kind = event["type"].rpartition(".")[2]
            if kind == "error":
                raise RuntimeError(event["error"]["message"])
            number = event.get("image_index", 0)
            if kind == "step":
                steps[number] = event["step"]
                advance(sum(steps.values()), event["steps"] * fields.get("n", 1))
            elif kind == "completed":
                pixels = Image.open(io.BytesIO(base64.b64decode(event["b64_json"]))).convert("RGB")
                pictures[number] = torch.from_numpy(np.asarray(pixels).astype(np.float32) / 255)
    if len(pictures) != fields.get("n", 1):
        raise RuntimeError(f"{url} ended the stream after {len(pictures)} of {fields.get('n', 1)} pictures")
    return [pictures[number] for number in sorted(pictures)]


def _events(url: str, fields: Fields, key: str, files: dict[str, bytes] | None) -> Generator[dict[str, Any]]:
    """The server-sent events of an answer. Closing the iterator ends the connection, which stops the pictures."""
    kind, body = _form(fields, files) if files else ("application/json", json.dumps(fields).encode())
    headers = {"Content-Type": kind, "Accept": "text/event-stream"}
    if key := key or os.environ.get("PODSLICE_API_KEY", ""):
        headers["Authorization"] = f"Bearer {key}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=TIMEOUT_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))
    except urllib.error.HTTPError as error:
        raise RuntimeError(_said(error)) from None
    except (OSError, ValueError) as error:
        raise RuntimeError(f"no answer from {url}: {error}") from None


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own words, where it has some."""
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answered {error.code}: {text[:300]}"


def _form(fields: Fields, files: dict[str, bytes]) -> tuple[str, bytes]:
    """A multipart form's type and bytes."""
    boundary, parts = uuid.uuid4().hex, []
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode())
    for name, content in files.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}.png"\r\nContent-Type: image/png'
        parts.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
    return f"multipart/form-data; boundary={boundary}", b"".join(parts) + f"--{boundary}--\r\n".encode()


def _png(image: torch.Tensor) -> bytes:
    """[height, width, 3] float, 0 to 1."""
    return _written(Image.fromarray((image.cpu().numpy().clip(0, 1) * 255).round().astype(np.uint8)))


def _mask(mask: torch.Tensor, width: int, height: int) -> bytes:
    """[height, width], 1 where it is drawn anew -> OpenAI's mask, which is transparent there."""
    alpha = Image.fromarray(((1 - mask.cpu().numpy().clip(0, 1)) * 255).round().astype(np.uint8)).resize(
        (width, height)
    )
    whole = Image.new("RGBA", (width, height))
    whole.putalpha(alpha)
    return _written(whole)


def _written(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _progress() -> Callable[[int, int], None]:
    """Shows (done, total) on the node, and raises ComfyUI's own exception once its user has interrupted it."""
    try:
        import comfy.model_management  # type: ignore[import-not-found]  # ComfyUI's own
        import comfy.utils  # type: ignore[import-not-found]
    except ImportError:  # outside of ComfyUI
        return lambda done, total: None
    bar = comfy.utils.ProgressBar(1)

    def advance(done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        bar.update_absolute(done, total)

    return advance


NODE_CLASS_MAPPINGS = {"PodsliceTextToImage": PodsliceTextToImage, "PodsliceImageToImage": PodsliceImageToImage}
NODE_DISPLAY_NAME_MAPPINGS = {
    "PodsliceTextToImage": "Podslice: text to image",
    "PodsliceImageToImage": "Podslice: image to image",
}
