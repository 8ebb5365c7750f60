"""Noise levels, against diffusers' FlowMatchEulerDiscreteScheduler as `ZImagePipeline` calls it."""

from typing import Any

import diffusers
import numpy as np
import pytest
from diffusers.pipelines.z_image.pipeline_z_image import calculate_shift

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.scheduling.flow import FlowSchedule

CONFIGS: list[dict[str, Any]] = [
    {"shift": 3.0},
    {},
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.3, "max_shift": 2.0},
    {"use_dynamic_shifting": True, "base_image_seq_len": 100, "max_image_seq_len": 9000, "shift_terminal": 0.1},
    {"shift": 6.0, "shift_terminal": 0.02},
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("steps", [1, 4, 9, 50])
@pytest.mark.parametrize("latents", [(128, 128), (64, 96)])
def test_levels_are_diffusers(config: dict[str, Any], steps: int, latents: tuple[int, int]) -> None:
    if steps == 1 and "shift_terminal" in config:
        pytest.skip("diffusers divides by 0")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**config)
    known = scheduler.config
    sequence = {name: known[name] for name in ("base_shift", "max_shift")}
    sequence |= {"base_seq_len": known["base_image_seq_len"], "max_seq_len": known["max_image_seq_len"]}
    mu = calculate_shift(latents[0] * latents[1] // 4, **sequence)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps).tolist(), mu=mu)
    table = FlowSchedule(dict(known)).table("euler", steps, latents=latents).coefficients
    np.testing.assert_allclose(table[:, 0], scheduler.sigmas[:-1], atol=1e-6)  # the time, which is the level
    np.testing.assert_allclose(table[:, 4], scheduler.sigmas[1:] / scheduler.sigmas[:-1], atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        {"use_karras_sigmas": True},
        {"stochastic_sampling": True},
        {"time_shift_type": "cubic"},
        {"_class_name": "DDIMScheduler"},
    ],
)
def test_other_configs_are_refused_by_field(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(config))):
        FlowSchedule(config)
