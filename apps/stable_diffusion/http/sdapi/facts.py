"""What AUTOMATIC1111's dialect says of a job: its description, and its progress."""

import time
from datetime import UTC, datetime
from typing import Any

from apps.stable_diffusion.engine.job import PictureJob
from apps.stable_diffusion.pictures import FinishedPng, PictureModel
from apps.stable_diffusion.prompt_syntax import with_loras
from apps.stable_diffusion.samplers import SAMPLER_NAMES
from ray_configs.cluster.release import PODSLICE_VERSION

Jobs = dict[PictureJob, float]
"""Open jobs and their start times, oldest first."""


def info_of(model: PictureModel, job: PictureJob, pictures: list[FinishedPng]) -> dict[str, Any]:
    """AUTOMATIC1111's description of a job; the `all_` lists cover the finished pictures."""
    first = job.requests[0]
    strength = None if first.second_pass is None else first.second_pass.strength
    return {
        "prompt": with_loras(first.prompt, first.loras),
        "all_prompts": [with_loras(drawn.request.prompt, drawn.request.loras) for drawn in pictures],
        "negative_prompt": first.negative_prompt,
        "all_negative_prompts": [drawn.request.negative_prompt for drawn in pictures],
        "seed": first.seed,
        "all_seeds": [drawn.request.seed for drawn in pictures],
        "width": first.width,
        "height": first.height,
        "sampler_name": SAMPLER_NAMES[first.scheduler],
        "cfg_scale": first.guidance_scale,
        "steps": first.num_inference_steps,
        "batch_size": len(job.requests),
        "denoising_strength": strength if first.image is None else first.strength,
        "sd_model_name": model.name,
        "infotexts": [drawn.parameters for drawn in pictures],
        "warnings": sorted({warning for drawn in pictures for warning in drawn.warnings}),
        "interrupted": len(pictures) < len(job.requests),
        "job_timestamp": _timestamp(),
        "version": f"podslice {PODSLICE_VERSION}",
    }


def progress_of(jobs: Jobs) -> dict[str, Any]:
    """Of the oldest."""
    idle = {"job": "", "job_count": 0, "job_no": 0, "sampling_step": 0, "sampling_steps": 0}
    reply = {"progress": 0.0, "eta_relative": 0.0, "current_image": None, "textinfo": None}
    state = {"skipped": False, "interrupted": False, "stopping_generation": False, "job_timestamp": _timestamp()}
    if not jobs:
        return reply | {"state": state | idle}
    job, began = next(iter(jobs.items()))
    done, total = sum(job.steps_done), sum(job.steps_total)
    share, seconds = done / total, time.monotonic() - began
    step = min(job.steps_done)
    of = {"job": "podslice", "job_count": len(jobs), "job_no": 0, "sampling_step": step}
    state |= of | {"interrupted": job.leaving, "sampling_steps": max(job.steps_total)}
    eta = seconds * (1 - share) / share if share else 0.0
    return reply | {"progress": share, "eta_relative": eta, "state": state}


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S")
