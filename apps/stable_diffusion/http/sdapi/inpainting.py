"""AUTOMATIC1111's img2img: what the engine starts from, and how its picture is put back where the mask kept the image.

With `inpaint_full_res` ("only masked", its default), the mask's surroundings are cut out, painted at the model's size
and pasted back, so the answer has the image's own size. Otherwise the whole image is painted at the model's size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.http.uploads import Fit, fitted, flattened, has_transparency

BLURS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2))
"""Radius, and how often it is laid over the one before: each is less thin further away from the kept part."""

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""


@dataclass(frozen=True)
class Start:
    """What the engine gets, and what becomes of its picture."""

    original: Image.Image
    """The whole image, as it was sent, on white."""
    image: np.ndarray
    """[height, width, 3] uint8"""
    mask: np.ndarray | None = None
    """[height, width] bool"""
    finish: Callable[[np.ndarray], np.ndarray] | None = None
    """Engine's pixels -> the answer's; None: as they are."""
    box: Box | None = None
    """The part of the original that is painted; None: all of it."""


def from_image(image: Image.Image, size: Size, fit: Fit) -> Start:
    """Image to image without a mask."""
    whole = flattened(image)
    return Start(whole, _pixels(fitted(whole, size, fit, Image.Resampling.LANCZOS)))


def from_mask(
    image: Image.Image,
    mask: Image.Image,
    size: Size,
    fit: Fit,
    *,
    inverted: bool,
    blur: tuple[float, float],
    filled: bool,
    only_masked: bool,
    padding: int,
) -> Start:
    """Inpainting: the mask is painted where it is white or, if it has transparency, where it is opaque.

    Args:
        mask: of another size than the image: it is stretched to it.
        blur: Gaussian blur of the mask's edge in pixels, on each axis.
        filled: begin with the surroundings' colors, instead of what is under the mask.
        only_masked: paint the mask and `padding` pixels around it at the model's size.
    """
    whole = flattened(image)
    grey = _brightness(mask)
    if grey.size != whole.size:
        grey = grey.resize(whole.size, Image.Resampling.BILINEAR)
    if inverted:
        grey = ImageOps.invert(grey)
    if any(blur):
        grey = grey.filter(ImageFilter.GaussianBlur(blur))
    if only_masked:
        box = _around(grey, padding, size)
        part = whole.crop(box).resize(size, Image.Resampling.LANCZOS)
        painted = grey.crop(box).resize(size, Image.Resampling.BILINEAR)
        under, cover = whole, grey
    else:
        box = (0, 0, *size)
        part = fitted(whole, size, fit, Image.Resampling.LANCZOS)
        painted = fitted(grey, size, fit, Image.Resampling.BILINEAR)
        under, cover = part, painted.point(lambda value: min(2 * value, 255))

    def finish(pixels: np.ndarray) -> np.ndarray:
        drawn = Image.fromarray(pixels).resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.LANCZOS)
        over = under.copy()
        over.paste(drawn, box[:2])
        return _pixels(Image.composite(over, under, cover))

    begun = _filled(part, painted) if filled else part
    return Start(whole, _pixels(begun), np.asarray(painted) >= 128, finish, box if only_masked else None)


def _pixels(image: Image.Image) -> np.ndarray:
    return np.array(image.convert("RGB"))


def _brightness(mask: Image.Image) -> Image.Image:
    return mask.convert("RGBA").getchannel("A") if has_transparency(mask) else mask.convert("L")


def _around(grey: Image.Image, padding: int, size: Size) -> Box:
    """The mask's surroundings, in the shape of `size` as far as the image has room."""
    left, top, right, bottom = grey.getbbox() or (0, 0, *grey.size)
    left, top = max(0, left - padding), max(0, top - padding)
    right, bottom = min(grey.width, right + padding), min(grey.height, bottom + padding)
    width, height = right - left, bottom - top
    width = min(grey.width, max(width, round(height * size[0] / size[1])))
    height = min(grey.height, max(height, round(width * size[1] / size[0])))
    left = min(max(0, (left + right - width) // 2), grey.width - width)
    top = min(max(0, (top + bottom - height) // 2), grey.height - height)
    return left, top, left + width, top + height


def _filled(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with the colors around the mask spread over it: blurs of the kept part, the widest at the bottom."""
    kept = image.convert("RGBA")
    kept.putalpha(ImageOps.invert(mask))
    spread = Image.new("RGBA", image.size)
    for radius, times in BLURS:
        blurred = kept.convert("RGBa").filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            spread.alpha_composite(blurred)
    spread.alpha_composite(kept)
    return spread.convert("RGB")
