"""Pictures that cost far more to decode than to send are refused. The oracle is Pillow, which takes the plain ones."""

import asyncio
import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request

from apps.serving.errors import RequestError
from apps.serving.ingress.bodies import PIECE
from apps.stable_diffusion.http.openai_requests import EditBody, read_edit
from apps.stable_diffusion.http.uploads import read_image

PIXELS = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)


def jpeg(**options: bool) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_of_ordinary_programs(progressive: bool) -> None:
    data = jpeg(progressive=progressive)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert (np.asarray(read_image(data, "image")) == expected).all()


def test_a_jpeg_of_many_scans() -> None:
    data = jpeg(progressive=True)
    scans = [found.start() for found in re.finditer(b"\xff\xda", data)]
    assert 5 < len(scans) < 20
    bomb = data[:-2] + data[scans[-1] : -2] * 200 + data[-2:]
    with pytest.raises(RequestError, match="image is a JPEG of more than 100 scans"):
        read_image(bomb, "image")


def test_too_many_pixels_are_not_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (6000, 6000)).save(file, "PNG")
    assert len(file.getvalue()) < 2**20
    with pytest.raises(RequestError, match="6000x6000"):
        read_image(file.getvalue(), "image")


def test_others_are_answered_while_a_form_is_parsed() -> None:
    """Oracle: what httpx wrote."""
    pixels = np.random.default_rng(1).integers(0, 255, 5 * PIECE, np.uint8).tobytes()
    files = {"image": ("a.png", pixels), "mask": ("b.png", b"mask")}
    sent = httpx.Request("POST", "http://test", files=files, data={"prompt": "a cat"})
    body, turns = sent.read(), [0]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def run() -> tuple[EditBody, bytes, bytes | None]:
        headers = [(b"content-type", sent.headers["content-type"].encode())]
        another = asyncio.create_task(others())
        found = await read_edit(Request({"type": "http", "headers": headers}, receive), EditBody)
        another.cancel()
        return found

    fields, image, mask = asyncio.run(run())
    assert (fields.prompt, image, mask) == ("a cat", pixels, b"mask")
    assert turns[0] > 5
