"""The noise that a model was trained with, and the levels of it that a scheduler's steps go through."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from apps.arrays.model_folder import CheckpointError

DEFAULTS: dict[str, dict[str, Any]] = {  # where diffusers' class for a scheduler differs from the others
    "ddim": {"timestep_spacing": "leading"},
    "lcm": {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"},
}
COMMON = {"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear", "timestep_spacing": "linspace"}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2"),
    "clip_sample": (False,),
    "final_sigmas_type": ("zero", "sigma_min"),
    "interpolation_type": ("linear",),
    "prediction_type": ("epsilon", "v_prediction", "sample"),
    "thresholding": (False,),
    "timestep_spacing": ("leading", "linspace", "trailing"),
    "timestep_type": ("discrete",),
    "use_beta_sigmas": (False, None),
    "use_exponential_sigmas": (False, None),
    "use_flow_sigmas": (False, None),
    "use_lu_lambdas": (False, None),
}


class Levels(NamedTuple):
    """The schedule before it is cut: time steps and noise levels, `sigmas` one longer than `times`."""

    times: np.ndarray  # [steps] given to the network
    sigmas: np.ndarray  # [steps + 1] noise to signal


class TrainedNoise:
    """What scheduler_config.json says of noise.

    Raises:
        CheckpointError: the config needs something unknown; the message names the field.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        if problem := problem_in(config, ALLOWED):
            raise CheckpointError(problem)

    def get(self, scheduler: str, name: str, default: Any = None) -> Any:
        """A field of the config, or what the scheduler's class in diffusers has by default."""
        found = self._config.get(name)
        return (COMMON | DEFAULTS.get(scheduler, {})).get(name, default) if found is None else found

    def signal(self, scheduler: str, train: int) -> np.ndarray:
        """[train] float64: the signal's share of the variance at each time step (alphas_cumprod)."""
        first, last = (self.get(scheduler, name) for name in ("beta_start", "beta_end"))
        kind = self.get(scheduler, "beta_schedule")
        if (trained := self._config.get("trained_betas")) is not None:
            betas = np.asarray(trained)
        elif kind == "linear":
            betas = np.linspace(first, last, train)
        elif kind == "scaled_linear":
            betas = np.linspace(first**0.5, last**0.5, train) ** 2
        else:
            cosine = np.cos((np.arange(train + 1) / train + 0.008) / 1.008 * np.pi / 2) ** 2
            betas = np.minimum(1 - cosine[1:] / cosine[:-1], 0.999)
        signal = np.cumprod(1 - betas.astype(np.float32), dtype=np.float64)
        if self._config.get("rescale_betas_zero_snr"):  # Lin et al. 2023: the last step is pure noise
            root = np.sqrt(signal)
            signal = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
            if scheduler not in ("ddim", "lcm"):
                signal[-1] = 2.0**-24  # so that the noise to signal ratio is finite
        return signal

    def times(self, scheduler: str, steps: int, train: int, more: int = 0) -> np.ndarray:
        """[steps] descending time steps; `more` extra points are spaced with them and dropped at the end."""
        spacing, offset = self.get(scheduler, "timestep_spacing"), self._config.get("steps_offset") or 0
        if spacing == "linspace":
            return np.linspace(0, train - 1, steps + more)[::-1][:steps]
        if spacing == "leading":
            return np.minimum((np.arange(steps + more) * (train // (steps + more)))[::-1][:steps] + offset, train - 1)
        return np.round(np.arange(train, 0, -train / steps))[:steps] - 1

    def levels(self, scheduler: str, steps: int, round_times: bool) -> Levels:
        train = self._config.get("num_train_timesteps", 1000)
        signal = self.signal(scheduler, train)
        all_sigmas = np.sqrt((1 - signal) / signal)
        times = self.times(scheduler, steps, train, more=int(round_times))
        times = np.round(times) if round_times else times.astype(np.float32)
        sigmas = np.interp(times, np.arange(train), all_sigmas)
        if self._config.get("use_karras_sigmas") and scheduler != "euler-ancestral":
            low, high = (sigmas[-1], sigmas[0]) if scheduler == "euler" else (all_sigmas[0], all_sigmas[-1])
            low, high = self._config.get("sigma_min") or low, self._config.get("sigma_max") or high
            sigmas = (np.linspace(high ** (1 / 7), low ** (1 / 7), steps)) ** 7
            times = np.interp(np.log(sigmas), np.log(all_sigmas), np.arange(train))
            times = np.round(times) if round_times else times
        end = all_sigmas[0] if self.get(scheduler, "final_sigmas_type") == "sigma_min" else 0.0
        return Levels(times, np.append(sigmas, 0.0 if scheduler == "euler-ancestral" else end))


def problem_in(config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> str | None:
    """Error message for the first unsupported field, if there is one."""
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            choice = " or ".join(map(repr, values))
            return f"scheduler_config.json: {name} {config[name]!r} is not supported: set it to {choice}"
    return None
