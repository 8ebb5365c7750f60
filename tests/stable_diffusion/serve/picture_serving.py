"""Ways to serve a picture model for a test, and to look at what comes."""

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.http_servers import served

MODEL = "tiny-shapes"


@dataclass(frozen=True)
class LocalServer:
    """An engine and its HTTP application in this process."""

    url: str
    engine: Any
    model: Any


@contextmanager
def local_server(backend: Any, **config: Any) -> Iterator[LocalServer]:
    """The application without Ray around it."""
    from apps.stable_diffusion.engine.engine import Engine
    from apps.stable_diffusion.http.app import http_app
    from apps.stable_diffusion.pictures import PictureModel
    from ray_configs.stable_diffusion import StableDiffusionConfig

    config = StableDiffusionConfig(**{"model": MODEL, **config})
    engine = Engine(backend, config.max_waiting)
    model = PictureModel(config, engine)
    with served(http_app(model)) as url:
        try:
            yield LocalServer(url, engine, model)
        finally:
            engine.shutdown()


def opened(png: bytes | str) -> Image.Image:
    """A PNG, or one in base64."""
    data = base64.b64decode(png, validate=True) if isinstance(png, str) else png
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    image.load()
    return image


def far_apart(one: bytes | str, other: bytes | str) -> int:
    """The largest difference of two pictures' pixels. Pictures made alone and in a batch may differ by a rounding."""
    a, b = (np.asarray(opened(png), np.int16) for png in (one, other))
    assert a.shape == b.shape
    return int(np.abs(a - b).max())


def png_of(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def events_of(text: str) -> list[tuple[str, Any]]:
    """(event name, data) of a server-sent stream."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        events.append((fields.get("event", ""), json.loads(fields["data"])))
    return events


def wait_until(condition: Callable[[], Any], timeout_s: float = 240) -> Any:
    """The first true value of the condition; fails the test after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value
