"""ControlNets in requests: their maps, as clients send them."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from PIL import Image, ImageOps
from pydantic import BeforeValidator, Field

from apps.serving.ingress.bodies import Body
from apps.stable_diffusion.engine.controlnets.use import MOST, ControlMode, ControlUse
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.http.loras import from_form
from apps.stable_diffusion.http.uploads import fitted, flattened, from_base64, read_image

MapFit = Literal["crop", "stretch", "fill"]
FEW_COLORS = 200
"""A map of fewer has areas of one color each, such as a segmentation: no colors are made between them."""


class ControlBody(Body):
    """A ControlNet that pictures are made with."""

    name: str
    image: str
    """The map that it reads, such as edges, depth or a pose: base64, or a data URL."""
    weight: float = Field(1.0, allow_inf_nan=False)
    start: float = Field(0.0, allow_inf_nan=False)
    end: float = Field(1.0, allow_inf_nan=False)
    """Shares of the steps between which it is used."""
    mode: ControlMode = "balanced"
    """On the `prompt` or the `control`: AUTOMATIC1111's "My prompt is more important" and "ControlNet is ..."."""
    resize: MapFit = "crop"
    """How a map of another size becomes the picture's: its middle, stretched, or whole, with borders."""


ControlBodies = Annotated[
    list[ControlBody], Field(max_length=MOST), BeforeValidator(from_form('[{"name": "edges", "image": "..."}]'))
]


def controls_of(bodies: Sequence[ControlBody], size: Size) -> tuple[ControlUse, ...]:
    """Decodes the maps, which takes a while. Raises RequestError."""
    return tuple(
        ControlUse(
            body.name,
            map_of(read_image(from_base64(body.image, "controlnets"), "controlnets"), size, body.resize),
            body.weight,
            body.start,
            body.end,
            body.mode,
        )
        for body in bodies
    )


def map_of(image: Image.Image, size: Size, fit: MapFit) -> np.ndarray:
    """A map as [height, width, 3] uint8 of this size (width, height); without new colors if it has few."""
    opened = flattened(image)
    colors = opened.getcolors(FEW_COLORS)
    how = Image.Resampling.LANCZOS if colors is None else Image.Resampling.NEAREST
    if fit == "fill":
        inside = ImageOps.contain(opened, size, how)
        whole = Image.new("RGB", size, _border(opened))
        whole.paste(inside, ((size[0] - inside.width) // 2, (size[1] - inside.height) // 2))
        return np.array(whole)
    return np.array(fitted(opened, size, fit, how))


def _border(image: Image.Image) -> tuple[int, ...]:
    """The median color along the four sides."""
    pixels = np.asarray(image)
    sides = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return tuple(int(each) for each in np.median(sides, axis=0))
