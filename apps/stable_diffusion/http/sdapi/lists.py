"""What AUTOMATIC1111's clients ask for when they start: mostly lists, of which this server has none; and png-info."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import psutil
from fastapi import APIRouter, Request
from PIL import ExifTags, Image

from apps.serving.errors import RequestError
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import parsed, refusing
from apps.serving.ingress.openapi import json_body
from apps.stable_diffusion.http.uploads import from_base64, read_image
from apps.stable_diffusion.pictures import PictureModel
from apps.stable_diffusion.upscalers import UPSCALERS
from ray_configs.cluster.release import PODSLICE_VERSION

NOTHING: dict[str, Any] = {
    "sd-vae": [],
    "hypernetworks": [],
    "embeddings": {"loaded": {}, "skipped": {}},
    "latent-upscale-modes": [{"name": name} for name in UPSCALERS],
    "face-restorers": [],
    "realesrgan-models": [],
    "prompt-styles": [],
    "scripts": {"txt2img": [], "img2img": []},
    "script-info": [],
    "extensions": [],
    "upscalers": [{"name": "None", "model_name": None, "model_path": None, "model_url": None, "scale": 1}],
}
"""Path -> its answer."""
REFRESHES = ("checkpoints", "vae", "embeddings")
MOST_CHARACTERS = 4000
"""Of the line with the facts: more are none of AUTOMATIC1111's."""
MOST_TEXT = 2**20
"""Characters of a picture's texts, in which some programs keep whole workflows."""
ENCODINGS = {b"UNICODE\0": "utf-16-be", b"ASCII\0\0\0": "ascii", b"JIS\0\0\0\0\0": "shift_jis"}
"""Of EXIF's comments, by their first bytes."""
_FACT = re.compile(r'\s*(\w[\w /-]{0,60}):\s*("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)')


class PictureBody(Body):
    """POST /sdapi/v1/png-info."""

    image: str
    """base64, with or without the prefix of a data URL."""


def add_lists(router: APIRouter, model: PictureModel) -> None:
    """Adds the routes."""
    for path, answer in NOTHING.items():
        router.add_api_route(f"/{path}", _always(answer), methods=["GET"], description="The web UI's; here are none.")
    for what in REFRESHES:
        router.add_api_route(f"/refresh-{what}", _always(None), methods=["POST"], include_in_schema=False)

    @router.get("/loras")
    async def loras() -> Any:
        """The LoRAs that prompts may name: `<lora:name:0.8>`."""
        return [
            {"name": lora.name, "alias": lora.alias, "path": lora.file, "metadata": lora.metadata}
            for lora in model.loras.all()
        ]

    @router.post("/refresh-loras")
    async def refresh_loras() -> Any:
        """Reads the config's `lora_folder` anew."""
        await asyncio.to_thread(model.loras.refresh)

    @router.get("/cmd-flags")
    async def flags() -> Any:
        """The web UI's command line, as far as there is one."""
        return {"api": True, "nowebui": True, "ckpt": model.name, "version": f"podslice {PODSLICE_VERSION}"}

    @router.get("/memory")
    async def memory() -> Any:
        """This process's memory in bytes."""
        used, total = psutil.Process().memory_info().rss, psutil.virtual_memory().total
        return {"ram": {"free": total - used, "used": used, "total": total}, "cuda": {"error": "unavailable"}}

    @router.post("/png-info", openapi_extra=json_body(PictureBody))
    async def png_info(request: Request) -> Any:
        """The generation parameters in a picture's metadata."""
        body = await parsed(PictureBody, request)
        with refusing():
            texts = await model.decoded(lambda: _texts(from_base64(body.image, "image")))
        written = texts.pop("parameters", "")
        return {"info": written, "items": texts, "parameters": read_parameters(written)}


def _texts(picture: bytes) -> dict[str, str]:
    """A picture's texts by name. Raises RequestError: it cannot be read, or has too many, which a few bytes can say."""
    image = read_image(picture, "image")
    texts = {name: text for name, text in image.info.items() if isinstance(name, str) and isinstance(text, str)}
    if comment := _comment(image):
        texts |= {"exif comment": comment, "parameters": comment}
    if (length := sum(map(len, texts.values()))) > MOST_TEXT:
        raise RequestError("image", f"image has texts of {length} characters; they can have {MOST_TEXT}")
    return texts


def _comment(image: Image.Image) -> str:
    """The comment in a picture's EXIF, where AUTOMATIC1111 keeps the parameters of JPEG and WebP; "" without one."""
    try:
        written = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment, b"")
    except Exception:  # Pillow raises errors of all kinds for broken EXIF
        return ""
    if not isinstance(written, bytes):
        return str(written)
    encoding = ENCODINGS.get(written[:8])
    return written[8:].decode(encoding, "ignore") if encoding else written.decode("utf-8", "ignore")


def _always(answer: Any) -> Callable[[], Any]:
    async def endpoint() -> Any:
        return answer

    return endpoint


def read_parameters(text: str) -> dict[str, str]:
    """The fields of AUTOMATIC1111's `parameters`: prompt, negative prompt, and a last line of `Steps: 5, Seed: 7`."""
    if not text.strip():
        return {}
    *lines, last = text.strip().split("\n")
    facts = {found[1].strip(): found[2].strip().strip('"') for found in _FACT.finditer(last[:MOST_CHARACTERS])}
    if len(facts) < 3:
        lines, facts = [*lines, last], {}
    prompt, _, negative = "\n".join(lines).partition("Negative prompt:")
    if size := re.fullmatch(r"(\d+)x(\d+)", facts.get("Size", "")):
        facts |= {"Size-1": size[1], "Size-2": size[2]}
    return {"Prompt": prompt.strip(), "Negative prompt": negative.strip(), **facts}
