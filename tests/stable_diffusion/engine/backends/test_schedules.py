"""Tables of coefficients against diffusers' own schedulers, given the same predictions and noise."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.model.checkpoint import CheckpointError
from apps.stable_diffusion.engine.request import SCHEDULERS
from apps.stable_diffusion.engine.scheduling.schedules import NoiseSchedule, Schedule, StepCoefficients

pytestmark = pytest.mark.slow

CLASSES = {
    "ddim": diffusers.DDIMScheduler,
    "euler": diffusers.EulerDiscreteScheduler,
    "euler-ancestral": diffusers.EulerAncestralDiscreteScheduler,
    "dpm-solver++": diffusers.DPMSolverMultistepScheduler,
    "lcm": diffusers.LCMScheduler,
}
BASE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False}
SHAPE = (1, 4, 3, 5)


def reference(name: str, config: dict[str, Any], steps: int, begin: int = 0) -> Iterator[tuple[Any, np.ndarray]]:
    """(time, sample) before each step, and the last sample; predictions and noise come from seeds."""
    scheduler = CLASSES[name].from_config(config)
    scheduler.set_timesteps(steps)
    times = scheduler.timesteps[begin:]
    if begin and hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(begin)
    random = torch.Generator().manual_seed(7)
    image, noise = (torch.randn(SHAPE, generator=random) for _ in range(2))
    x = scheduler.add_noise(image, noise, times[:1]) if begin else noise * scheduler.init_noise_sigma
    for i, t in enumerate(times):
        yield float(t), scheduler.scale_model_input(x, t).numpy(), x.numpy()
        output = torch.randn(SHAPE, generator=torch.Generator().manual_seed(i))
        takes_noise = {"generator": random} if name in ("euler-ancestral", "lcm") else {}
        x = scheduler.step(output, t, x, **takes_noise).prev_sample
    yield None, None, x.numpy()


def ours(schedule: Schedule) -> Iterator[tuple[Any, np.ndarray]]:
    random = torch.Generator().manual_seed(7)
    image, noise = (torch.randn(SHAPE, generator=random).numpy() for _ in range(2))
    x, before = schedule.start_image * image + schedule.start_noise * noise, np.zeros(SHAPE)
    for i, numbers in enumerate(schedule.coefficients):
        row = StepCoefficients(*map(float, numbers))
        yield row.time, row.scale * x, x
        output = torch.randn(SHAPE, generator=torch.Generator().manual_seed(i)).numpy()
        estimate = row.from_sample * x + row.from_output * output
        drawn = torch.randn(SHAPE, generator=random).numpy() if schedule.draws[i] else 0
        x = row.keep * x + row.toward * estimate + row.momentum * before + row.jitter * drawn
        before = estimate
    yield None, None, x


def compare(name: str, config: dict[str, Any], steps: int, begin: int = 0, is_xl: bool = True) -> None:
    strength = None if begin == 0 else (steps - begin + 0.5) / steps
    schedule = NoiseSchedule(config, is_xl).table(name, steps, strength)
    assert len(schedule.coefficients) == len(schedule.draws) == steps - begin
    for (t, seen, x), (time, scaled, sample) in zip(reference(name, config, steps, begin), ours(schedule), strict=True):
        if t is not None:
            assert time == pytest.approx(t, abs=1e-3)
            np.testing.assert_allclose(scaled, seen, rtol=1e-3, atol=1e-3 * max(1, np.abs(seen).max()))
        np.testing.assert_allclose(sample, x, rtol=1e-3, atol=1e-3 * max(1, np.abs(x).max()))


STEPS = (1, 2, 3, 4, 5, 8, 13, 14, 15, 16, 20, 25, 30, 37, 50)
KINDS = [
    (name, prediction, spacing, zero_snr)
    for name, prediction, spacing, zero_snr in product(
        SCHEDULERS, ("epsilon", "v_prediction", "sample"), ("leading", "linspace", "trailing"), (False, True)
    )
    if not (zero_snr and prediction == "epsilon")
    and not (name == "euler-ancestral" and prediction == "sample")  # diffusers has no such
]


@pytest.mark.parametrize(("name", "prediction", "spacing", "zero_snr"), KINDS)
def test_as_diffusers(name: str, prediction: str, spacing: str, zero_snr: bool) -> None:
    config = BASE | {"prediction_type": prediction, "timestep_spacing": spacing, "rescale_betas_zero_snr": zero_snr}
    for steps in STEPS:
        compare(name, config | {"steps_offset": steps % 2}, steps)
    for steps, begin in ((4, 1), (20, 4), (20, 19), (30, 15)):
        compare(name, config | {"steps_offset": 1}, steps, begin)


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "another end": {"set_alpha_to_one": False, "final_sigmas_type": "sigma_min", "steps_offset": 1},
    "linear betas": {"beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02},
    "cosine betas": {"beta_schedule": "squaredcos_cap_v2"},
    "betas of its own": {"trained_betas": np.linspace(0.001, 0.01, 1000).tolist()},
    "karras": {"use_karras_sigmas": True},
    "karras between": {"use_karras_sigmas": True, "sigma_min": 0.1, "sigma_max": 10.0},
    "heun": {"solver_type": "heun"},
    "first order": {"solver_order": 1},
    "euler at the end": {"euler_at_final": True, "lower_order_final": False, "final_sigmas_type": "sigma_min"},
    "few steps taught": {"original_inference_steps": 100, "timestep_scaling": 5.0},
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_other_configs_as_diffusers(kind: str, name: str) -> None:
    config = CONFIGS[kind] if kind == "nothing said" else BASE | CONFIGS[kind]
    if kind == "cosine betas" and name == "euler-ancestral":
        pytest.skip("diffusers gives NaN")
    if name in ("ddim", "lcm"):
        config = config | {"clip_sample": False}
    for steps in (1, 4, 14, 15, 20):
        compare(name, config, steps)


def test_turbo() -> None:
    config = BASE | {"timestep_spacing": "trailing", "steps_offset": 1}
    for steps, name in product((1, 2, 3, 4), ("euler", "euler-ancestral", "dpm-solver++", "lcm")):
        compare(name, config, steps)


REFUSED = {
    "thresholding": True,
    "clip_sample": True,
    "timestep_spacing": "karras",
    "prediction_type": "flow_prediction",
    "use_exponential_sigmas": True,
    "timestep_type": "continuous",
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_linear_is_refused_by_name(field: str) -> None:
    with pytest.raises(CheckpointError, match=rf"scheduler_config.json: {field} .* set it to"):
        NoiseSchedule(BASE | {field: REFUSED[field]}, is_xl=True)


def test_what_a_request_may_not_ask() -> None:
    schedule = NoiseSchedule(BASE)
    with pytest.raises(RequestError, match="the model knows 1000 steps"):
        schedule.table("ddim", 1001)
    with pytest.raises(RequestError, match="lcm takes at most 50 steps"):
        schedule.table("lcm", 51)
    with pytest.raises(RequestError, match=r"strength 0\.1 of 5 steps leaves none"):
        schedule.table("euler", 5, 0.1)
    with pytest.raises(RequestError, match="solver_order 3 is not supported"):
        NoiseSchedule(BASE | {"solver_order": 3}).table("dpm-solver++", 5)
    with pytest.raises(RequestError, match="rescale_betas_zero_snr and prediction_type 'epsilon'"):
        NoiseSchedule(BASE | {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}).table("ddim", 5)


@pytest.mark.parametrize("name", ["euler", "dpm-solver++"])
def test_karras_levels_that_a_request_asks_for_are_diffusers(name: str) -> None:
    config = BASE | {"timestep_spacing": "leading", "steps_offset": 1}
    asked, diffusers_ = NoiseSchedule(config).karras().table(name, 20), config | {"use_karras_sigmas": True}
    for (_, _, sample), (_, _, x) in zip(reference(name, diffusers_, 20), ours(asked), strict=True):
        np.testing.assert_allclose(sample, x, rtol=1e-3, atol=1e-3 * max(1, np.abs(x).max()))


def test_a_strength_of_nothing_runs_the_last_step() -> None:
    """As AUTOMATIC1111 does, where diffusers refuses it."""
    schedule = NoiseSchedule(BASE)
    one, least = schedule.table("euler", 5, 0.2), schedule.table("euler", 5, 0.0, min_steps=1)
    assert (least.coefficients == one.coefficients).all()
    assert len(schedule.table("euler", 5, 0.6, min_steps=1).coefficients) == 3


def test_plain_models_have_an_offset_of_one() -> None:
    """As diffusers' StableDiffusionPipeline sets it, whatever the file says."""
    plain, xl = (NoiseSchedule(BASE, is_xl).table("ddim", 10).coefficients[-1][0] for is_xl in (False, True))
    assert (plain, xl) == (1, 0)
