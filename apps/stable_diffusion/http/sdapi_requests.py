"""Bodies of AUTOMATIC1111's web UI API, which most Stable Diffusion programs use."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import SCHEDULERS, Scheduler
from apps.stable_diffusion.png import SAMPLER_NAMES

NOT_OFFERED = {
    "enable_hr": "pictures are made at one size, without a second pass",
    "tiling": "pictures have edges",
    "restore_faces": "there is no face restoration here",
    "script_name": "scripts do not run here",
    "refiner_checkpoint": "one model is served here",
    "styles": "there are no styles here; write them into the prompt",
}
"""Unsupported fields that would change the picture, and why. Their defaults are accepted."""

NAMES = {
    "num_inference_steps": "steps",
    "guidance_scale": "cfg_scale",
    "scheduler": "sampler_name",
    "n": "batch_size * n_iter",
    "strength": "denoising_strength",
    "size": "width, height",
    "image": "init_images",
}
"""Engine's field -> AUTOMATIC1111's."""


class Text2ImageBody(BaseModel):
    """POST /sdapi/v1/txt2img. Unknown fields are ignored, as AUTOMATIC1111 does."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), use_attribute_docstrings=True)

    prompt: str = ""
    negative_prompt: str | None = None
    steps: int | None = None
    cfg_scale: float | None = Field(None, allow_inf_nan=False)
    width: int | None = None
    height: int | None = None
    seed: int | None = -1
    sampler_name: str | None = None
    sampler_index: str | None = None
    """An older name of `sampler_name`."""
    scheduler: str | None = None
    batch_size: int | None = Field(1, ge=1)
    n_iter: int | None = Field(1, ge=1)
    send_images: bool | None = True
    override_settings: dict[str, Any] | None = None
    enable_hr: bool | None = None
    tiling: bool | None = None
    restore_faces: bool | None = None
    script_name: str | None = None
    refiner_checkpoint: str | None = None
    styles: list[str] | None = None

    @field_validator(*NOT_OFFERED)
    @classmethod
    def _offered(cls, value: Any, info: Any) -> Any:
        if value:
            raise ValueError(f"is not offered: {NOT_OFFERED[info.field_name]}")
        return value

    @field_validator("scheduler")
    @classmethod
    def _one_schedule(cls, value: str | None) -> str | None:
        if value and value.lower() not in ("automatic", "use same scheduler"):
            raise ValueError(f"{value!r} is not offered; leave it out, or write 'Automatic'")
        return value

    @property
    def pictures(self) -> int:
        return (self.batch_size or 1) * (self.n_iter or 1)

    def sampler(self) -> Scheduler | None:
        """The engine's name of the sampler; None: the default. Raises RequestError for an unknown one."""
        name = self.sampler_name or self.sampler_index
        if not name or name.lower() == "automatic":
            return None
        for scheduler in SCHEDULERS:
            if name.lower() in (scheduler, SAMPLER_NAMES[scheduler].lower()):
                return scheduler
        known = ", ".join(SAMPLER_NAMES.values())
        raise RequestError("scheduler", f"scheduler {name!r} is not one of {known}")


class Image2ImageBody(Text2ImageBody):
    """POST /sdapi/v1/img2img. Masks are used unchanged: `mask_blur` and `inpaint_full_res` do nothing."""

    init_images: list[str] = Field(min_length=1, max_length=1)
    mask: str | None = None
    denoising_strength: float | None = Field(0.75, allow_inf_nan=False)
    resize_mode: int | None = 0
    """0 stretches the image to width x height, 1 crops it."""
    inpainting_mask_invert: int | None = 0

    @field_validator("resize_mode")
    @classmethod
    def _offered_mode(cls, value: int | None) -> int | None:
        if value not in (None, 0, 1):
            raise ValueError("is not offered; use 0 (stretch) or 1 (crop)")
        return value
