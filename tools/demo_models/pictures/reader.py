"""Reads colors, shapes, sizes and places back out of a picture, by measuring.

It uses no learned model: the background is the border's color, a thing is a connected patch that differs from it, a
color is the nearest of the palette, and a shape is the drawn template that covers the patch best.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from tools.demo_models.pictures.scenes import COLORS, PICTURE, RADII, SHAPES, Scene, Thing, draw, outline

DIFFERENT = 45.0  # least distance in RGB from the background, of 255 a channel, of a pixel that belongs to a thing
SMALLEST = 24  # least pixels of a thing; smaller patches are specks
GRID = 32  # shapes are compared in a square of this many pixels a side
NAMES = tuple(COLORS)
PALETTE = np.array([COLORS[name] for name in NAMES], float)
EXTENT = {shape: float(np.ptp(outline(shape), axis=0).max()) for shape in SHAPES}  # of a shape of radius 1


@dataclass(frozen=True)
class Seen:
    """One thing read from a picture; its middle is in pixels, and `match` is how well the shape fits, up to 1."""

    shape: str
    color: str
    size: str
    x: float
    y: float
    match: float


@dataclass(frozen=True)
class Reading:
    """What a picture shows, the largest thing first."""

    background: str
    things: tuple[Seen, ...]


def nearest_color(color: np.ndarray) -> str:
    """The name of the palette's color that is nearest in RGB."""
    return NAMES[int(((PALETTE - color) ** 2).sum(1).argmin())]


def relation(first: Seen, second: Seen) -> str:
    """The first thing's position relative to the second."""
    across, down = first.x - second.x, first.y - second.y
    if abs(down) >= abs(across):
        return "above" if down < 0 else "below"
    return "left of" if across < 0 else "right of"


def place(thing: Seen) -> str:
    """A thing's position in the picture, as one of `scenes.PLACES`."""

    def third(at: float, low: str, high: str) -> str:
        return low if at < PICTURE / 2 - 6 else high if at > PICTURE / 2 + 6 else ""

    return " ".join((third(thing.y, "top", "bottom"), third(thing.x, "left", "right"))).strip() or "middle"


def read(picture: np.ndarray) -> Reading:
    """Reads a picture: uint8 [64, 64, 3]."""
    pixels = picture.astype(float)
    edge = np.ones(picture.shape[:2], bool)
    edge[2:-2, 2:-2] = False
    ground = np.median(pixels[edge], axis=0)
    distance = np.sqrt(((pixels - ground) ** 2).sum(-1))
    patches = sorted(_patches(distance > DIFFERENT), key=np.sum, reverse=True)
    patches = [patch for patch in patches if patch.sum() >= SMALLEST]
    return Reading(nearest_color(ground), tuple(_seen(pixels, ground, patch, len(patches)) for patch in patches))


def _shifted(mask: np.ndarray) -> list[np.ndarray]:
    """The mask moved by one pixel each way."""
    padded = np.pad(mask, 1)
    return [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]


def _patches(mask: np.ndarray) -> Iterator[np.ndarray]:
    """The connected patches of a mask."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:  # each pixel takes the largest number among its neighbors, until none changes
        spread = np.where(mask, np.maximum.reduce([labels, *_shifted(labels)]), 0)
        if (spread == labels).all():
            break
        labels = spread
    for label in np.unique(labels[mask]):
        yield labels == label


def _seen(pixels: np.ndarray, ground: np.ndarray, patch: np.ndarray, count: int) -> Seen:
    inside = patch & np.logical_and.reduce(_shifted(patch))
    color = np.median(pixels[inside if inside.any() else patch], axis=0)
    # How much of each pixel the thing covers: how far its color is from the background's, relative to the thing's.
    way = color - ground
    around = np.logical_or.reduce([patch, *_shifted(patch)])
    covered = np.clip((pixels - ground) @ way / (way @ way), 0, 1) * around
    outlined = _outlined(covered)
    matches = {shape: max(_overlap(outlined, one) for one in _templates()[shape]) for shape in SHAPES}
    shape = max(matches, key=matches.get)
    rows, columns = (np.flatnonzero((covered > 0.5).any(axis)) for axis in (1, 0))
    radius = max(np.ptp(rows), np.ptp(columns)) + 1 if len(rows) else 0
    return Seen(
        shape, nearest_color(color), _size(radius / EXTENT[shape], count),
        float(columns.mean()) + 0.5 if len(rows) else 0.0, float(rows.mean()) + 0.5 if len(rows) else 0.0,
        matches[shape],
    )  # fmt: skip


def _size(radius: float, count: int) -> str:
    """The size whose radii, in a picture of `count` things, are nearest."""
    radii = RADII[min(max(count, 1), 2)]
    return min(radii, key=lambda size: abs(math.log(max(radius, 1.0) / (sum(radii[size]) / 2))))


def _outlined(covered: np.ndarray) -> np.ndarray:
    """A thing's cover cut out and stretched to the grid, by the same factor both ways: float from 0 to 1."""
    rows, columns = (np.flatnonzero((covered > 0.3).any(axis)) for axis in (1, 0))
    if not len(rows):
        return np.zeros((GRID, GRID))
    top, left = rows[0], columns[0]
    height, width = rows[-1] + 1 - top, columns[-1] + 1 - left
    side = max(height, width)
    square = np.zeros((side, side), np.float32)
    down, across = (side - height) // 2, (side - width) // 2
    square[down : down + height, across : across + width] = covered[top : top + height, left : left + width]
    return np.asarray(Image.fromarray(square).resize((GRID, GRID), Image.Resampling.BILINEAR))


def _overlap(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Intersection over union of two covers."""
    return float(np.minimum(ours, theirs).sum() / max(np.maximum(ours, theirs).sum(), 1e-6))


@cache
def _templates() -> dict[str, tuple[np.ndarray, ...]]:
    """Covers of every shape in several sizes, each at several places between the pixels."""
    rng = random.Random(0)
    templates = {}
    for shape in SHAPES:
        covers = []
        for radius in (7.5, 10.0, 15.0, 22.0):
            for _ in range(3):
                x, y = (PICTURE / 2 + rng.random() for _ in range(2))
                picture = draw(Scene("black", (Thing(shape, "white", "medium", x, y, radius),)))[..., 0].astype(float)
                dark, light = COLORS["black"][0], COLORS["white"][0]
                covers.append(_outlined((picture - dark) / (light - dark)))
        templates[shape] = tuple(covers)
    return templates
