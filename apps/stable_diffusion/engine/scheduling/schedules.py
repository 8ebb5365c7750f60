"""Schedulers as tables of coefficients.

DDIM, Euler, Euler ancestral, DPM-Solver++(2M) and LCM are all linear in the inputs of a denoising step: the noisy
sample x, the network's output m, the previous step's estimate of the result, and fresh noise. A step is

    estimate = from_sample * x + from_output * m
    x        = keep * x + toward * estimate + momentum * estimate_before + jitter * noise

so one compiled step, with a row of coefficients for each picture, serves all of them side by side. The coefficients are
those of diffusers' schedulers for the same config, so that a seed gives the same picture.

DDIM: Song et al. 2020. Euler: Karras et al. 2022. DPM-Solver++: Lu et al. 2022. LCM: Luo et al. 2023. Turbo models
are Euler ancestral or Euler with trailing steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import SCHEDULERS, Scheduler
from apps.stable_diffusion.engine.scheduling.trained_noise import TrainedNoise, problem_in

DPM_ALLOWED: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("dpmsolver++",),
    "lambda_min_clipped": (None, -float("inf")),
    "solver_order": (1, 2),
    "solver_type": ("midpoint", "heun"),
    "variance_type": (None,),
}


class StepCoefficients(NamedTuple):
    """One step's coefficients; see the module's docstring."""

    time: float  # time step given to the network
    scale: float  # the network sees scale * x
    from_sample: float
    from_output: float
    keep: float
    toward: float
    momentum: float
    jitter: float
    original: float  # inpainting: after the step the kept part is original * image + noise * start noise
    noise: float


COLUMNS = len(StepCoefficients._fields)


@dataclass(frozen=True)
class Schedule:
    """The steps of one picture."""

    coefficients: np.ndarray
    """[steps, COLUMNS] float32: a row of StepCoefficients for each step."""
    draws: tuple[bool, ...]
    """Whether the random generator is drawn from at each step."""
    start_image: float
    start_noise: float
    """The first latents are start_image * the image's latents + start_noise * the start noise."""


class Course:
    """All steps that a scheduler would take, before image to image cuts off the beginning."""

    def __init__(
        self,
        columns: dict[str, np.ndarray],
        estimate: tuple[np.ndarray, np.ndarray],
        mix: tuple[np.ndarray, np.ndarray],
        pure: float = 1.0,
        draws: tuple[bool, ...] = (),
    ) -> None:
        """
        Args:
            estimate: weights of the sample and of the network's output in the estimate of the result, [steps] each.
            mix: weights of signal and noise in the input sample of each step.
            pure: standard deviation of the latents that text to image starts from.
        """
        columns["from_sample"], columns["from_output"] = estimate
        columns["original"] = np.append(mix[0][1:], 1.0)  # the output of step i is the input of step i + 1
        columns["noise"] = np.append(mix[1][1:], 0.0)
        self.columns, self._mix, self._pure = columns, mix, pure
        self._draws = draws or (False,) * len(mix[0])

    def schedule(self, begin: int, pure: bool) -> Schedule:
        table = np.stack([self.columns[name] for name in StepCoefficients._fields], axis=-1)[begin:].astype(np.float32)
        start = (0.0, self._pure) if pure else (self._mix[0][begin], self._mix[1][begin])
        return Schedule(table, self._draws[begin:], *map(float, start))


class NoiseSchedule:
    """Makes tables from a checkpoint's scheduler config, for any of the schedulers. For newer models: `FlowSchedule`.

    Raises:
        CheckpointError: the config needs something unknown or not linear; the message names the field.
    """

    schedulers = SCHEDULERS

    def __init__(self, config: Mapping[str, Any], is_xl: bool = False) -> None:
        self._config = dict(config)
        if not is_xl:  # diffusers' pipelines force these for 1.x and 2.x, as the models were published
            self._config |= {"steps_offset": 1, "clip_sample": False}
        self._noise = TrainedNoise(self._config)

    def karras(self) -> "NoiseSchedule":
        """The same with noise levels as Karras et al. 2022 space them, which euler and dpm-solver++ take."""
        return NoiseSchedule(self._config | {"use_karras_sigmas": True}, is_xl=True)

    def table(
        self,
        scheduler: Scheduler,
        steps: int,
        strength: float | None = None,
        inpaint: bool = False,
        min_steps: int = 0,
        latents: tuple[int, int] | None = None,
    ) -> Schedule:
        """The steps of a picture; `strength` is of image to image and inpainting, None without an image.

        Args:
            min_steps: that are run with an image, however small `strength` is.
            latents: their height and width, which change nothing here.

        Raises:
            RequestError: this scheduler cannot serve the model, or these steps or strength.
        """
        train = self._config.get("num_train_timesteps", 1000)
        if steps > train:
            raise RequestError("num_inference_steps", f"num_inference_steps is {steps}; the model knows {train} steps")
        begin = 0
        if strength is not None:
            begin = steps - min(max(int(steps * strength), min_steps), steps)
            check_left(steps - begin, steps, strength)
        prediction = self._noise.get(scheduler, "prediction_type", "epsilon")
        make = {"ddim": self._ddim, "euler": self._euler, "euler-ancestral": self._ancestral}
        make |= {"dpm-solver++": self._dpm, "lcm": self._lcm}
        with np.errstate(divide="ignore", invalid="ignore"):
            course = make[scheduler](steps, begin, prediction)
        if not np.isfinite(course.columns["from_output"]).all():
            raise RequestError(
                "scheduler",
                f"{scheduler} cannot serve a model with rescale_betas_zero_snr and prediction_type {prediction!r}, "
                "whose first step has no signal of the picture: use euler",
            )
        if not all(np.isfinite(column).all() for column in course.columns.values()):
            raise RequestError(
                "num_inference_steps", f"num_inference_steps {steps} is too many for {scheduler}: its steps coincide"
            )
        return course.schedule(begin, pure=strength is None or (inpaint and strength == 1))

    def _ddim(self, steps: int, begin: int, prediction: str) -> Course:
        train = self._config.get("num_train_timesteps", 1000)
        signal = self._noise.signal("ddim", train)
        times = np.round(self._noise.times("ddim", steps, train)).astype(int)
        before = times - train // steps
        last = 1.0 if self._config.get("set_alpha_to_one", True) else signal[0]
        after = np.where(before >= 0, signal[np.maximum(before, 0)], last)
        alpha, sigma = np.sqrt(signal[times]), np.sqrt(1 - signal[times])
        alpha_after, sigma_after = np.sqrt(after), np.sqrt(1 - after)
        keep = sigma_after / sigma
        columns = columns_of(steps, time=times, keep=keep, toward=alpha_after - alpha * keep)
        return Course(columns, _variance_preserving(prediction, alpha, sigma), (alpha, sigma))

    def _euler(self, steps: int, begin: int, prediction: str) -> Course:
        times, sigmas = self._noise.levels("euler", steps, round_times=False)
        ratio = sigmas[1:] / sigmas[:-1]
        return self._exploding("euler", begin, prediction, times, sigmas, ratio, np.zeros(steps))

    def _ancestral(self, steps: int, begin: int, prediction: str) -> Course:
        times, sigmas = self._noise.levels("euler-ancestral", steps, round_times=False)
        here, there = sigmas[:-1], sigmas[1:]
        up = there * np.sqrt(here**2 - there**2) / here
        down = np.sqrt(there**2 - up**2)
        return self._exploding("euler-ancestral", begin, prediction, times, sigmas, down / here, up)

    def _exploding(
        self,
        scheduler: str,
        begin: int,
        prediction: str,
        times: np.ndarray,
        sigmas: np.ndarray,
        ratio: np.ndarray,
        jitter: np.ndarray,
    ) -> Course:
        """Samples that are signal + sigma * noise, `ratio` of which is kept at each step."""
        steps, here = len(times), sigmas[:-1]
        scale = 1 / np.sqrt(here**2 + 1)
        columns = columns_of(steps, time=times, scale=scale, keep=ratio, toward=1 - ratio, jitter=jitter)
        estimate = {
            "epsilon": (np.ones(steps), -here),
            "v_prediction": (scale**2, -here * scale),
            "sample": (np.zeros(steps), np.ones(steps)),
        }[prediction]
        leading = self._noise.get(scheduler, "timestep_spacing") == "leading"
        start = np.sqrt(sigmas.max() ** 2 + 1) if leading else sigmas.max()
        draws = scheduler == "euler-ancestral"
        return Course(columns, estimate, (np.ones(steps), here), start, (draws,) * steps)

    def _dpm(self, steps: int, begin: int, prediction: str) -> Course:
        config = self._config
        if problem := problem_in(config, DPM_ALLOWED):
            raise RequestError("scheduler", f"dpm-solver++ cannot serve this model: {problem}")
        times, sigmas = self._noise.levels("dpm-solver++", steps, round_times=True)
        alphas = 1 / np.sqrt(sigmas**2 + 1)
        noises = sigmas * alphas
        log_ratio = -np.log(sigmas)  # half the log of the signal to noise ratio
        width = np.diff(log_ratio)  # [steps]
        keep = noises[1:] / noises[:-1]
        first = -alphas[1:] * np.expm1(-width)  # weight of the estimate at first order
        columns = columns_of(steps, time=times, keep=keep, toward=first)
        order = config.get("solver_order", 2)
        for i in range(begin + 1, steps if order > 1 else 0):
            few = config.get("lower_order_final", True) and steps < 15
            if i == steps - 1 and (
                config.get("euler_at_final") or few or config.get("final_sigmas_type", "zero") == "zero"
            ):
                continue
            slope = width[i] / width[i - 1]  # times the difference of two estimates: their change over a step
            if config.get("solver_type", "midpoint") == "midpoint":
                second = first[i] / 2 * slope
            else:
                second = alphas[i + 1] * (np.expm1(-width[i]) / width[i] + 1) * slope
            columns["toward"][i] += second
            columns["momentum"][i] = -second
        estimate = _variance_preserving(prediction, alphas[:-1], noises[:-1])
        return Course(columns, estimate, (alphas[:-1], noises[:-1]))

    def _lcm(self, steps: int, begin: int, prediction: str) -> Course:
        train = self._config.get("num_train_timesteps", 1000)
        most = self._config.get("original_inference_steps") or 50
        if steps > most:
            raise RequestError(
                "num_inference_steps", f"num_inference_steps is {steps}; lcm takes at most {most} steps, and 4 to 8 do"
            )
        signal = self._noise.signal("lcm", train)
        taught = (np.arange(1, most + 1) * (train // most) - 1)[::-1]
        times = taught[np.floor(np.linspace(0, most, steps, endpoint=False)).astype(int)]
        alpha, sigma = np.sqrt(signal[times]), np.sqrt(1 - signal[times])
        scaled = times * (self._config.get("timestep_scaling") or 10.0)
        skip, out = 0.25 / (scaled**2 + 0.25), scaled / np.sqrt(scaled**2 + 0.25)
        alpha_after, jitter = np.append(alpha[1:], 1.0), np.append(sigma[1:], 0.0)
        columns = columns_of(steps, time=times, keep=alpha_after * skip, toward=alpha_after * out, jitter=jitter)
        draws = (*(True,) * (steps - 1), False)
        return Course(columns, _variance_preserving(prediction, alpha, sigma), (alpha, sigma), draws=draws)


def _variance_preserving(prediction: str, alpha: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of x = alpha * signal + sigma * noise and of the network's output in the estimate of the signal."""
    return {
        "epsilon": (1 / alpha, -sigma / alpha),
        "v_prediction": (alpha, -sigma),
        "sample": (np.zeros_like(alpha), np.ones_like(alpha)),
    }[prediction]


def check_left(left: int, steps: int, strength: float) -> None:
    """Raises RequestError if `strength` leaves no steps."""
    if left == 0:
        raise RequestError("strength", f"strength {strength} of {steps} steps leaves none to run: raise either of them")


def columns_of(steps: int, **columns: np.ndarray) -> dict[str, np.ndarray]:
    zero = {name: np.zeros(steps) for name in StepCoefficients._fields}
    return zero | {"scale": np.ones(steps)} | {name: np.array(column, float) for name, column in columns.items()}
