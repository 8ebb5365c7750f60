"""Pictures: what is sent, and what is shown of their events as they arrive."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


@dataclass
class _Drawn:
    png: bytes | None = None
    step: int = 0
    steps: int = 0
    seed: int | None = None


class Drawing:
    """The pictures of one request, as far as their events have arrived."""

    def __init__(self, number: int):
        self._pictures = [_Drawn() for _ in range(number)]
        self.warnings: list[str] = []

    def take(self, event: Mapping[str, Any]) -> bool:
        """Adds an event of image_generation or image_edit. Returns whether a picture changed."""
        picture = self._pictures[event["image_index"]]
        kind = event["type"].rpartition(".")[2]
        if kind == "step":
            picture.step, picture.steps = event["step"], event["steps"]
            return False
        picture.png = base64.b64decode(event["b64_json"])
        if kind == "completed":
            picture.seed = event["seed"]
            self.warnings += [warning for warning in event.get("warnings", ()) if warning not in self.warnings]
        return True

    def gallery(self) -> list[tuple[bytes, str]]:
        """(PNG, caption) of each picture that has something to show: a preview, or the picture with its seed."""
        return [
            (picture.png, f"preview, step {picture.step}" if picture.seed is None else f"seed {picture.seed}")
            for picture in self._pictures
            if picture.png is not None
        ]

    def progress(self) -> str:
        """Finished pictures, and the steps of those that are being drawn."""
        done = sum(picture.seed is not None for picture in self._pictures)
        parts = [f"{done} of {len(self._pictures)} pictures"]
        drawing = [f"{each.step}/{each.steps}" for each in self._pictures if each.seed is None and each.steps]
        parts += [f"steps {', '.join(drawing)}"] if drawing else []
        return " · ".join(parts + self.warnings)


def call(
    fields: Mapping[str, Any], number: int, previews: int, image: bytes | None = None, strength: float | None = None
) -> tuple[str, dict[str, Any]]:
    """Path and httpx's options of a request for pictures.

    Args:
        fields: of the body; None and "" for the service's defaults.
        number: of pictures.
        previews: how many of each before it is finished.
        image: PNG to begin with: image to image.
        strength: share of the steps that are run on `image`.
    """
    body = {name: value for name, value in fields.items() if value not in (None, "")}
    body |= {"n": number, "partial_images": previews, "stream": True, "progress": True}
    if image is None:
        return GENERATIONS, {"json": body}
    body |= {} if strength is None else {"strength": strength}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in body.items()}
    return EDITS, {"data": texts, "files": {"image": ("image.png", image, "image/png")}}


def schedulers(samplers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, value for `scheduler`) of /sdapi/v1/samplers."""
    return [(sampler["name"], sampler["aliases"][0]) for sampler in samplers if sampler["aliases"]]
