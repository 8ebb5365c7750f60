"""Pictures of colored shapes and their captions: the demo model's training data.

A scene is one shape, or two of which one stands above, below, left or right of the other, on a plain background.
A tenth of the combinations is held out: never drawn for training, so that they can be used for evaluation.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLORS = {
    "red": (220, 35, 35), "green": (35, 165, 65), "blue": (40, 80, 225), "yellow": (250, 220, 45),
    "orange": (245, 140, 25), "purple": (140, 55, 190), "white": (245, 245, 245), "black": (20, 20, 20),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "ring", "heart", "cross")
RADII = {
    1: {"small": (8.5, 10.5), "medium": (14.0, 16.5), "large": (21.0, 24.0)},
    2: {"small": (7.0, 8.0), "medium": (10.0, 11.0), "large": (13.0, 14.0)},
}
"""Radii in pixels of each size in a picture of one shape, and of two, where there is less room."""

RELATIONS = ("above", "below", "left of", "right of")
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
PLACES = {
    "top left": (-1, -1), "top": (0, -1), "top right": (1, -1), "left": (-1, 0), "middle": (0, 0), "right": (1, 0),
    "bottom left": (-1, 1), "bottom": (0, 1), "bottom right": (1, 1),
}  # fmt: skip
"""Places that a caption can name: the direction from the middle, across and down."""

PICTURE = 64  # pixels on a side
FINER = 4  # pictures are drawn this much larger and then reduced, for smooth edges
MARGIN = 3  # pixels kept free at the edges of the picture
RING_HOLE = 0.55  # of the radius


@dataclass(frozen=True)
class Thing:
    """One shape in a picture; its middle and radius are in pixels."""

    shape: str
    color: str
    size: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """The content of a picture. With two things, `relation` is the first's position relative to the second."""

    background: str
    things: tuple[Thing, ...]
    place: str | None = None  # of the only thing, if the caption may name it
    relation: str | None = None


def outline(shape: str) -> np.ndarray:
    """The corners of a shape of radius 1 around (0, 0), y down: [corners, 2]."""
    turn = np.linspace(0, 2 * math.pi, 64, endpoint=False)
    if shape in ("circle", "ring"):
        return np.stack([np.cos(turn), np.sin(turn)], 1)
    if shape == "square":
        return np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.88
    if shape == "triangle":
        return np.array([(0, -1), (1, 0.8), (-1, 0.8)])
    if shape == "star":
        points = np.arange(10)
        angle = -math.pi / 2 + points * math.pi / 5
        return np.stack([np.cos(angle), np.sin(angle)], 1) * np.where(points % 2, 0.46, 1.1)[:, None]
    if shape == "heart":
        x = np.sin(turn) ** 3
        y = -(13 * np.cos(turn) - 5 * np.cos(2 * turn) - 2 * np.cos(3 * turn) - np.cos(4 * turn)) / 16
        return np.stack([x, y], 1)
    if shape == "cross":
        arm = 0.34
        quarter = np.array([(-arm, -1), (arm, -1), (arm, -arm)])
        turns = [np.linalg.matrix_power(np.array([(0, 1), (-1, 0)]), n) for n in range(4)]
        return np.concatenate([quarter @ one for one in turns])
    raise ValueError(f"unknown shape: {shape}")


def draw(scene: Scene) -> np.ndarray:
    """The picture of a scene: uint8 [64, 64, 3]."""
    side = PICTURE * FINER
    image = Image.new("RGB", (side, side), COLORS[scene.background])
    pencil = ImageDraw.Draw(image)

    def fill(thing: Thing, radius: float, color: str) -> None:
        corners = (outline(thing.shape) * radius + (thing.x, thing.y)) * FINER
        pencil.polygon([tuple(corner) for corner in corners], fill=COLORS[color])

    for thing in scene.things:
        fill(thing, thing.radius, thing.color)
        if thing.shape == "ring":
            fill(thing, thing.radius * RING_HOLE, scene.background)
    return np.asarray(image.resize((PICTURE, PICTURE), Image.Resampling.BOX))


def _tenth(*words: str) -> bool:
    """True for about a tenth of all combinations of words, the same ones on every machine."""
    return int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:4], "big") % 10 == 0


def held_out(scene: Scene) -> bool:
    """Whether a scene is kept out of training: a shape in its color on its background, or a pair of such shapes."""
    if any(_tenth(thing.shape, thing.color, scene.background) for thing in scene.things):
        return True
    names = sorted(f"{thing.color} {thing.shape}" for thing in scene.things)
    return len(names) == 2 and _tenth(*names)


def combinations() -> list[tuple[str, str, str]]:
    """Every (shape, color, background) that can be seen, in a fixed order."""
    return [(shape, color, ground) for shape in SHAPES for color in COLORS for ground in COLORS if color != ground]


def one_thing(
    rng: random.Random, shape: str, color: str, background: str, size: str | None = None, place: str | None = None
) -> Scene:
    """A picture of one thing, near the middle if no place is given."""
    size = size or rng.choice(("small", "medium", "medium", "large"))
    radius = rng.uniform(*RADII[1][size])
    room = PICTURE / 2 - MARGIN - radius * 1.1 - 1.5  # from the middle to the edge, less the jitter there
    x, y = (
        PICTURE / 2 + (side * (room + rng.uniform(-1.5, 1.5)) if side else rng.uniform(-2.5, 2.5))
        for side in PLACES[place or "middle"]
    )
    return Scene(background, (Thing(shape, color, size, x, y, radius),), place)


def two_things(
    rng: random.Random, kinds: tuple[tuple[str, str], tuple[str, str]], background: str, relation: str,
    sizes: tuple[str | None, str | None] = (None, None),
) -> Scene:  # fmt: skip
    """A picture of two things, each a (shape, color), the first standing in `relation` to the second."""
    sign = -1 if relation in ("above", "left of") else 1
    things = []
    for (shape, color), side, size in zip(kinds, (sign, -sign), sizes):
        size = size or rng.choice(("small", "medium", "medium", "large"))
        along = PICTURE / 2 + side * (PICTURE / 4 + rng.uniform(-1.0, 1.0))
        beside = PICTURE / 2 + rng.uniform(-3.0, 3.0)
        x, y = (beside, along) if relation in ("above", "below") else (along, beside)
        things.append(Thing(shape, color, size, x, y, rng.uniform(*RADII[2][size])))
    return Scene(background, tuple(things), relation=relation)


def training_scene(rng: random.Random, pairs: float = 0.45) -> Scene:
    """A random scene that is not held out; of two things in a share `pairs` of all."""
    while True:
        background = rng.choice(list(COLORS))
        others = [color for color in COLORS if color != background]
        if rng.random() < pairs:
            kinds = tuple((rng.choice(SHAPES), rng.choice(others)) for _ in range(2))
            if kinds[0] == kinds[1]:
                continue
            scene = two_things(rng, kinds, background, rng.choice(RELATIONS))
        else:
            place = rng.choice(list(PLACES)) if rng.random() < 0.25 else None
            size = rng.choice(("small", "medium")) if place and place != "middle" else None  # a large one fills it
            scene = one_thing(rng, rng.choice(SHAPES), rng.choice(others), background, size, place)
        if not held_out(scene):
            return scene


def with_article(words: str) -> str:
    """`words` after "a" or "an"."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def name(thing: Thing, sized: bool = True) -> str:
    """A thing in words: a medium one has no word for its size."""
    return f"{thing.size} {thing.color} {thing.shape}" if sized and thing.size != "medium" else (
        f"{thing.color} {thing.shape}"
    )  # fmt: skip


def caption(scene: Scene) -> str:
    """The plainest full caption of a scene."""
    words = with_article(name(scene.things[0]))
    if scene.relation:
        to = "to the " if scene.relation.endswith("of") else ""
        words += f" {to}{scene.relation} {with_article(name(scene.things[1]))}"
    if scene.place:
        words += f" {_where(scene.place)[0]}"
    return f"{words} on {with_article(scene.background)} background"


def training_caption(rng: random.Random, scene: Scene) -> str:
    """A caption in one of many forms, some of which leave something out."""
    first, *rest = scene.things
    articles = rng.random() < 0.75
    sized = rng.random() < 0.9
    relation = scene.relation
    if rest and rng.random() < 0.5:  # said the other way round
        first, rest, relation = rest[0], [first], OPPOSITE[relation]

    def noun(thing: Thing) -> str:
        return with_article(name(thing, sized)) if articles else name(thing, sized)

    words = noun(first)
    if rest:
        if rng.random() < 0.1:
            joint = "and" if relation in ("above", "below") else rng.choice(("and", "next to"))
        elif relation.endswith("of"):
            joint = rng.choice((f"to the {relation}", relation))
        else:
            joint = {"above": "above", "below": rng.choice(("below", "below", "under"))}[relation]
        words = f"{words} {joint} {noun(rest[0])}"
    elif scene.place and rng.random() < 0.9:
        words += f" {rng.choice(_where(scene.place))}"
    form = rng.random()
    if form < 0.55:
        words += f" on {with_article(scene.background)} background"
    elif form < 0.7:
        words += f" on {scene.background}"
    elif form < 0.8:
        words += f", {scene.background} background"
    if articles and rng.random() < 0.2:
        words = rng.choice(("a picture of ", "a drawing of ", "an image of ")) + words
    return words


def _where(place: str) -> tuple[str, ...]:
    """Ways to say a place, the plainest first."""
    if place == "middle":
        return "in the middle", "in the center"
    if " " in place:
        return f"in the {place}", f"in the {place} corner"
    if place in ("left", "right"):
        return f"on the {place}", f"on the {place} side"
    return f"at the {place}", f"near the {place}"
