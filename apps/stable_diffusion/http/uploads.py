"""Pictures that clients send: decoded from PNG, JPEG or WebP, and resized to the model's size."""

import base64
import binascii
import io
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import Size

MAX_PIXELS = 4096 * 4096
FORMATS = ("PNG", "JPEG", "WEBP")
MOST_SCANS = 100
"""Of a progressive JPEG, which has ten: each is a pass over all pixels, and can be a few bytes."""

Fit = Literal["stretch", "crop"]


def from_base64(text: str, field: str) -> bytes:
    """Decode base64, with or without the prefix `data:image/png;base64,`. Raises RequestError."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(field, f"{field} is not valid base64") from None


def read_image(data: bytes, field: str) -> Image.Image:
    """Decode a picture of at most 16 megapixels, rotated by its EXIF orientation. Raises RequestError."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.format == "JPEG" and data.count(b"\xff\xda") > MOST_SCANS:
            raise RequestError(field, f"{field} is a JPEG of more than {MOST_SCANS} scans: save it again, as baseline")
        if image.width * image.height > MAX_PIXELS:
            raise RequestError(field, f"{field} has {image.width}x{image.height} pixels; the most is 4096x4096")
        image.load()
        return ImageOps.exif_transpose(image)
    except RequestError:
        raise
    except Exception:  # Pillow's decoders raise errors of all kinds for broken files
        raise RequestError(field, f"{field} is not a readable PNG, JPEG or WebP picture") from None


def read_mask(data: bytes, image: Image.Image) -> Image.Image:
    """Decode one of OpenAI's masks, which must have its image's size. Raises RequestError."""
    mask = read_image(data, "mask")
    if mask.size != image.size:
        sizes = f"{mask.width}x{mask.height}, and the image {image.width}x{image.height}"
        raise RequestError("mask", f"mask has {sizes}; they must have the same size")
    return mask


def pixels_of(image: Image.Image, size: Size, fit: Fit) -> np.ndarray:
    """[height, width, 3] uint8, on white where it is transparent, resized to `size` (width, height)."""
    return np.array(fitted(flattened(image), size, fit, Image.Resampling.LANCZOS))


def flattened(image: Image.Image) -> Image.Image:
    """The picture as RGB, on white where it is transparent."""
    if not has_transparency(image):
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")


def has_transparency(image: Image.Image) -> bool:
    return image.has_transparency_data and bool(np.any(np.asarray(image.convert("RGBA").getchannel("A")) < 255))


def mask_from_alpha(image: Image.Image, size: Size, fit: Fit) -> np.ndarray:
    """OpenAI's masks: [height, width] bool, True (repaint) where the picture is transparent."""
    alpha = fitted(image.convert("RGBA").getchannel("A"), size, fit, Image.Resampling.BILINEAR)
    return np.asarray(alpha) < 128


def fitted(image: Image.Image, size: Size, fit: Fit, how: Image.Resampling) -> Image.Image:
    """The picture at another size: stretched, or its middle."""
    if image.size == size:
        return image
    return ImageOps.fit(image, size, how) if fit == "crop" else image.resize(size, how)
