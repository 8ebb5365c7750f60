"""Opens images that clients send: bounded, and as transformers' `load_image` does it."""

import base64
import binascii
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

from apps.llm.api import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_BYTES = 20 << 20
"""Of one file."""
MOST_PIXELS = 1 << 25
"""Of one image, a little more than 8K has. Some four copies of it, of three bytes a pixel, are in memory."""
LARGE = 1 << 22
LARGE_ONES = Lock()
"""Held while an image of more pixels than LARGE is in memory."""
WIDE = ("I", "F")
"""How the names of PIL's modes with more than eight bits a channel begin."""


def decoded(data: str, field: str) -> bytes:
    """A file in base64. Raises RequestError, which names `field`, if it is not, or is too large."""
    if len(data) > MOST_BYTES * 4 // 3 + 4:
        raise RequestError(field, f"{field}: the image has more than {MOST_BYTES >> 20} MiB")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(field, f"{field}: the image is not in base64: {error}") from error


@contextmanager
def opened(content: bytes, field: str) -> Iterator["Image"]:
    """An image in RGB, turned as its EXIF orientation says. Transparency is left out, as transformers does.

    Of large ones, a process has one at a time.

    Raises:
        RequestError: names `field`: it is no image of a known format, is too large, animated, or wider than 8 bits.
    """
    from PIL import Image, ImageOps

    with _damage_named(field), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # bounded here
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        _check(image, field)
    with LARGE_ONES if image.width * image.height > LARGE else nullcontext():
        with _damage_named(field):
            found = ImageOps.exif_transpose(image).convert("RGB")
        yield found


def _check(image: "Image", field: str) -> None:
    """Raises RequestError for an image that is not to be read, of which the header is known alone."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise RequestError(field, f"{field}: the image has {width} x {height} pixels; at most {MOST_PIXELS} are read")
    if getattr(image, "n_frames", 1) > 1:
        raise RequestError(field, f"{field}: the image is animated: send one frame of it")
    if image.mode.startswith(WIDE):
        raise RequestError(field, f"{field}: the image has more than 8 bits a channel: convert it to 8")


@contextmanager
def _damage_named(field: str) -> Iterator[None]:
    """Whatever PIL's readers meet in the block becomes a RequestError."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError as error:
        raise RequestError(field, f"{field}: this is no image of a known format: {', '.join(FORMATS)}") from error
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(field, f"{field}: the image is damaged: {error}") from error
