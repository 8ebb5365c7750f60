"""The parameters of one picture, and the checks that need no model."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.controlnets.use import ControlUse

Scheduler = Literal["ddim", "euler", "euler-ancestral", "dpm-solver++", "lcm"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)
KARRAS: tuple[Scheduler, ...] = ("euler", "dpm-solver++")
"""Those that can take their noise levels as Karras et al. 2022 space them."""

MAX_SEED = 2**32 - 1
MAX_GUIDANCE = 50.0
MAX_LORA_WEIGHT = 100.0


Size = tuple[int, int]
"""Width and height in pixels."""


def check_size(size: Size, served: Sequence[Size]) -> None:
    """Raises RequestError unless the model was compiled for that size."""
    if size not in served:
        known = ", ".join(f"{width}x{height}" for width, height in served)
        raise RequestError("size", f"size {size[0]}x{size[1]} is not served here; choose one of: {known}")


def check_prompt(prompt: str) -> None:
    """Raises RequestError for a prompt without words, which the engine draws but most dialects refuse."""
    if not prompt.strip():
        raise RequestError("prompt", "prompt is empty: say what the picture should show")


Interpolation = Literal["bilinear", "bicubic", "nearest", "nearest-exact"]
"""torch's names."""


@dataclass(frozen=True)
class LoraUse:
    """A LoRA that a picture is made with."""

    name: str
    weight: float = 1.0
    """Of what it adds to the denoiser."""
    text_weight: float = 1.0
    """Of what it adds to the text encoders."""

    def __post_init__(self) -> None:
        for weight in (self.weight, self.text_weight):
            if not abs(weight) <= MAX_LORA_WEIGHT:
                raise RequestError(
                    "loras",
                    f"loras: the weight of {self.name!r:.100} is {weight}; it can be {-MAX_LORA_WEIGHT:g} to "
                    f"{MAX_LORA_WEIGHT:g}",
                )


@dataclass(frozen=True)
class SecondPass:
    """What follows a first pass, whose latents are enlarged and drawn over: AUTOMATIC1111's "hires fix"."""

    width: int
    height: int
    """Pixels of the picture in the end."""
    strength: float = 0.75
    """Share of the steps that are run, 0 to 1, but at least one step."""
    num_inference_steps: int | None = None
    """None: as many as the first pass has."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    """With bilinear and bicubic."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise RequestError("strength", f"strength is {self.strength}; it must be from 0 to 1")
        steps = self.num_inference_steps
        if steps is not None and steps < 1:
            raise RequestError("num_inference_steps", f"the second pass has {steps} steps; it must have at least 1")

    def steps(self, first: int) -> int:
        """Steps that it runs, after a first pass that was asked for so many."""
        return max(1, int((self.num_inference_steps or first) * self.strength))


@dataclass(frozen=True)
class PictureRequest:
    """One picture. A request for n pictures is n of these with consecutive seeds."""

    prompt: str
    width: int
    height: int
    """Pixels; both must be multiples of the VAE's reduction (8 for Stable Diffusion)."""
    num_inference_steps: int
    guidance_scale: float
    """Weight of the prompt against the negative one; 1 and below follows the prompt alone."""
    scheduler: Scheduler
    karras: bool = False
    """Noise levels as Karras et al. 2022 space them, whatever the checkpoint says; with those in KARRAS."""
    negative_prompt: str = ""
    emphasis: bool = False
    """The prompts are written as AUTOMATIC1111 reads them, with `(red:1.5)`, `[red]` and `BREAK`: see `emphasis`."""
    clip_skip: int = 1
    """Which layer of CLIP's text encoder is read, counted from the last: AUTOMATIC1111's "Clip skip"."""
    seed: int = field(default_factory=lambda: secrets.randbelow(MAX_SEED + 1))
    """Seeds `torch.Generator("cpu")`, which draws the start noise as in diffusers, on every backend."""
    image: np.ndarray | None = None
    """[height, width, 3] uint8: image to image, or, with `mask`, inpainting."""
    mask: np.ndarray | None = None
    """[height, width] bool: True is repainted, False is kept."""
    strength: float = 0.8
    """With `image`: share of the denoising steps that are run, 0 to 1; 1 forgets the image."""
    min_steps: int = 0
    """With `image`: steps that are run at least; with 1, `strength` may be 0."""
    loras: tuple[LoraUse, ...] = ()
    controls: tuple[ControlUse, ...] = ()
    second_pass: SecondPass | None = None
    """What is drawn over the picture, enlarged; not with `image`."""
    latents: np.ndarray | None = None
    """[h, w, channels] float32, in place of `image`: what a second pass begins with."""

    def __post_init__(self) -> None:
        def refuse(name: str, message: str) -> None:
            raise RequestError(name, message)

        if self.scheduler not in SCHEDULERS:
            refuse("scheduler", f"scheduler {self.scheduler!r} is not one of {', '.join(SCHEDULERS)}")
        if self.num_inference_steps < 1:
            refuse("num_inference_steps", f"num_inference_steps is {self.num_inference_steps}; it must be at least 1")
        if not 0 <= self.guidance_scale <= MAX_GUIDANCE:
            refuse("guidance_scale", f"guidance_scale is {self.guidance_scale}; it can be 0 to {MAX_GUIDANCE:g}")
        if self.clip_skip < 1:
            refuse("clip_skip", f"clip_skip is {self.clip_skip}; 1 reads the last layer, 2 the last but one")
        if not 0 <= self.seed <= MAX_SEED:
            refuse("seed", f"seed is {self.seed}; it must be from 0 to {MAX_SEED}")
        if self.karras and self.scheduler not in KARRAS:
            refuse("scheduler", f"scheduler {self.scheduler!r} has no Karras noise levels: use {' or '.join(KARRAS)}")
        if not self.strength + self.min_steps > 0 or not 0 <= self.strength <= 1:
            above = "from 0 to 1" if self.min_steps else "above 0 and at most 1"
            refuse("strength", f"strength is {self.strength}; it must be {above}")
        size = self.height, self.width
        second = None if self.second_pass is None else (self.second_pass.height, self.second_pass.width, 3)
        for name, array, shape in (
            ("image", self.image, (*size, 3)),
            ("mask", self.mask, size),
            *(("controlnets", use.image, (*size, 3)) for use in self.controls),
            *(("controlnets", use.second_image, second) for use in self.controls),
        ):
            if array is not None and array.shape != shape:
                refuse(name, f"{name}: it is {list(array.shape)}; the requested size needs {list(shape or ())}")
        if self.mask is not None and self.image is None:
            refuse("mask", "mask needs an image to keep parts of")
        if self.second_pass is not None and self.image is not None:
            refuse("second_pass", "a second pass is for pictures that begin with noise, not with an image")
