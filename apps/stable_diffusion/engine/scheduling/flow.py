"""Flow matching (Lipman et al. 2023): the table of a picture whose network predicts the velocity from it to noise.

At noise level t a sample is (1 - t) * picture + t * noise, and the network's output v their difference's estimate
noise - picture; so the picture is x - t * v. Levels are those of diffusers' `FlowMatchEulerDiscreteScheduler` as its
pipelines call it, which shift them towards noise: by a constant, or by more the larger the picture.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import Scheduler
from apps.stable_diffusion.engine.scheduling.schedules import Course, Schedule, check_left, columns_of
from apps.stable_diffusion.engine.scheduling.trained_noise import problem_in

CLASS = "FlowMatchEulerDiscreteScheduler"
ALLOWED: dict[str, tuple[Any, ...]] = {
    "_class_name": (CLASS, None),
    "invert_sigmas": (False, None),
    "stochastic_sampling": (False, None),
    "time_shift_type": ("exponential", "linear"),
    "use_beta_sigmas": (False, None),
    "use_exponential_sigmas": (False, None),
    "use_karras_sigmas": (False, None),
}
PATCH = 2
"""Latents of a patch's side: pictures are as large as they have patches."""


class FlowSchedule:
    """Makes tables from a checkpoint's scheduler config. See `NoiseSchedule` for Stable Diffusion's.

    Args:
        shift: of a picture's number of patches and of steps, where shifts depend on the picture; None: on the line that
            the config describes.

    Raises:
        CheckpointError: the config needs something unknown; the message names the field.
    """

    schedulers: tuple[Scheduler, ...] = ("euler",)

    def __init__(self, config: Mapping[str, Any], shift: Callable[[int, int], float] | None = None) -> None:
        if problem := problem_in(config, ALLOWED):
            raise CheckpointError(problem)
        self._config, self._shift = config, shift

    def karras(self) -> "FlowSchedule":
        raise RequestError("scheduler", "this model's noise levels are its own: leave out Karras")

    def table(
        self,
        scheduler: Scheduler,
        steps: int,
        strength: float | None = None,
        inpaint: bool = False,
        min_steps: int = 0,
        *,
        latents: tuple[int, int],
    ) -> Schedule:
        """The steps of a picture: see `NoiseSchedule.table`.

        Args:
            latents: their height and width.
        """
        if scheduler not in self.schedulers:
            raise RequestError("scheduler", f"scheduler {scheduler!r} cannot serve this model: use euler")
        begin = 0
        if strength is not None:
            begin = min(int(max(steps - min(steps * strength, steps), 0)), steps - min(min_steps, steps))
            check_left(steps - begin, steps, strength)
        levels = np.append(self.levels(steps, latents), 0.0)
        here, there = levels[:-1], levels[1:]
        keep = there / here
        columns = columns_of(steps, time=here, keep=keep, toward=1 - keep)
        return Course(columns, (np.ones(steps), -here), (1 - here, here)).schedule(begin, pure=strength is None)

    def levels(self, steps: int, latents: tuple[int, int]) -> np.ndarray:
        """[steps] noise levels, descending from 1."""
        get = self._config.get
        levels = np.linspace(1, 1 / steps, steps)
        if get("use_dynamic_shifting"):
            shift = self._dynamic_shift(latents, steps)
            if get("time_shift_type", "exponential") == "exponential":
                shift = np.exp(shift)
        else:
            shift = get("shift", 1.0)
        levels = shift * levels / (1 + (shift - 1) * levels)
        if (end := get("shift_terminal")) and steps > 1:
            levels = 1 - (1 - levels) * (1 - end) / (1 - levels[-1])
        return levels

    def _dynamic_shift(self, latents: tuple[int, int], steps: int) -> float:
        """On a line through two sizes' shifts, by the number of patches."""
        patches = (latents[0] // PATCH) * (latents[1] // PATCH)
        if self._shift is not None:
            return self._shift(patches, steps)
        defaults = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
        small, large, low, high = (self._config.get(name) or default for name, default in defaults.items())
        if small == large:
            raise CheckpointError("scheduler_config.json: base_image_seq_len and max_image_seq_len are the same")
        return low + (high - low) / (large - small) * (patches - small)


def klein_shift(patches: int, steps: int) -> float:
    """FLUX.2 klein's: on lines through the shifts of 10 and 200 steps, each on a line by the number of patches; beyond
    4300 patches that of 200. Source: `compute_empirical_mu` in diffusers."""
    few, many = 8.73809524e-05 * patches + 1.89833333, 0.00016927 * patches + 0.45666666
    return many if patches > 4300 else many + (many - few) * (steps - 200) / 190
