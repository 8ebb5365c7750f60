"""The parts of a picture that are the same on every backend: checks, steps and random numbers.

The numbers are drawn by torch on the CPU, in the order in which diffusers' pipelines draw them (the encoded image,
the start, each step of a scheduler that adds noise), so that a seed gives the same picture everywhere.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import PictureRequest
from apps.stable_diffusion.engine.scheduling.flow import FlowSchedule
from apps.stable_diffusion.engine.scheduling.schedules import NoiseSchedule, Schedule, StepCoefficients

if TYPE_CHECKING:
    import torch

UNCHANGED = StepCoefficients(0, 1, 0, 0, keep=1, toward=0, momentum=0, jitter=0, original=0, noise=0)
RESTING = np.array([*UNCHANGED, 1], np.float32)
"""[COLUMNS + 1] coefficients and guidance scale that leave a picture unchanged, for what pads a batch."""


@dataclass
class Trajectory:
    """The plan and progress of one picture."""

    request: PictureRequest
    schedule: Schedule
    guidance: float
    """Weight of the prompt against the negative one; 1: the prompt alone counts."""
    shape: tuple[int, int, int]
    """Height, width and channels of the latents."""
    random: "torch.Generator"
    image_noise: "torch.Tensor | None"
    """[1, channels, h, w] for the encoder's sample, if there is an image."""
    start_noise: "torch.Tensor"
    """[1, channels, h, w]"""
    patch: int = 1
    """See `draw`."""
    steps_done: int = 0

    @property
    def steps_total(self) -> int:
        return len(self.schedule.coefficients)

    @property
    def mask(self) -> np.ndarray | None:
        """[h, w] float32 of the latents, 1 where they are repainted."""
        if self.request.mask is None:
            return None
        reduction = self.request.height // self.shape[0]
        return self.request.mask[::reduction, ::reduction].astype(np.float32)

    def next_coefficients(self) -> np.ndarray:
        """The next step's coefficients and the guidance scale, [COLUMNS + 1] float32."""
        return np.append(self.schedule.coefficients[self.steps_done], np.float32(self.guidance))

    def next_noise(self) -> "torch.Tensor | None":
        """[1, channels, h, w] noise of the next step; None if it adds none. Call it once for each step."""
        return draw(self.random, self.shape, self.patch) if self.schedule.draws[self.steps_done] else None


@dataclass(eq=False)
class StartedPicture:
    """What the pictures of all backends are, besides their arrays. See `backend.Picture`."""

    request: PictureRequest
    warnings: tuple[str, ...]
    plan: Trajectory

    @property
    def steps_total(self) -> int:
        return self.plan.steps_total

    @property
    def steps_done(self) -> int:
        return self.plan.steps_done


def draw(random: "torch.Generator", shape: tuple[int, int, int], patch: int = 1) -> "torch.Tensor":
    """[1, channels, h, w] for latents of a height, a width and channels, in the order in which diffusers draws them.

    Args:
        patch: side of squares of latents, whose every place is drawn for all of them before the next place's.
    """
    import torch

    height, width, channels = shape[0] // patch, shape[1] // patch, shape[2]
    noise = torch.randn((1, channels * patch**2, height, width), generator=random)
    squares = noise.reshape(channels, patch, patch, height, width).permute(0, 3, 1, 4, 2)
    return squares.reshape(1, channels, height * patch, width * patch)


@dataclass(frozen=True)
class Planner:
    """Checks requests against a loaded model, and plans their steps."""

    reduction: int
    """Pixels per latent, on each axis."""
    channels: int
    """Of the latents."""
    guided: bool
    no_guidance: float
    """See `PipelineKind`."""
    noise_schedule: NoiseSchedule | FlowSchedule
    patch: int = 1
    """See `draw`."""
    from_images: bool = True
    """See `PipelineKind`."""

    def plan(self, request: PictureRequest) -> Trajectory:
        """Plan a picture. Raises RequestError if this model cannot make it."""
        if request.guidance_scale > self.no_guidance and not self.guided:
            raise RequestError(
                "guidance_scale",
                f"guidance_scale is {request.guidance_scale}; this model is served without guidance: leave it out, or "
                f"set it to at most {self.no_guidance:g}",
            )
        if request.image is not None and not self.from_images:
            raise RequestError("image", "this model makes pictures of prompts alone: leave the image out")
        if request.second_pass is not None and not self.from_images:
            raise RequestError("second_pass", "this model's pictures have one pass: leave the second one out")
        strength = None if request.image is None and request.latents is None else request.strength
        inpaint = request.mask is not None
        shape = request.height // self.reduction, request.width // self.reduction, self.channels
        noise_schedule = self.noise_schedule.karras() if request.karras else self.noise_schedule
        schedule = noise_schedule.table(
            request.scheduler, request.num_inference_steps, strength, inpaint, request.min_steps, latents=shape[:2]
        )
        import torch

        random = torch.Generator("cpu").manual_seed(request.seed)
        image_noise = None if request.image is None else draw(random, shape, self.patch)
        start_noise = draw(random, shape, self.patch)
        if inpaint:
            draw(random, shape)  # diffusers encodes the masked image too, even if the network does not read it
        guidance = max(1.0, request.guidance_scale + 1 - self.no_guidance)
        return Trajectory(request, schedule, guidance, shape, random, image_noise, start_noise, self.patch)


def check_batch(plans: Sequence[Trajectory], groups: Sequence[Hashable], steps: int, most: int) -> None:
    """Raises ValueError if a batch violates the contract of `Backend.denoise`."""
    if not 0 < len(plans) <= most:
        raise ValueError(f"a batch of {len(plans)} pictures: from 1 to {most} fit")
    if len(set(groups)) > 1:
        raise ValueError(f"the pictures of a batch must be of one group, not of {sorted(set(groups), key=str)}")
    left = min(plan.steps_total - plan.steps_done for plan in plans)
    if not 0 < steps <= left:
        raise ValueError(f"{steps} steps requested; the first picture to finish has {left} left")


def batch_sizes(most: int, chips: int = 1, passes: int = 1) -> tuple[int, ...]:
    """Compiled batch sizes: ascending, each twice the one before, up to the first that holds `most` pictures.

    Each gives every chip the same number of passes through the network; a picture takes `passes` of them per step.
    """
    sizes = [chips // math.gcd(chips, passes)]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)
