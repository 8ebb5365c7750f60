"""Bodies of AUTOMATIC1111's web UI API, which most Stable Diffusion programs use."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from apps.stable_diffusion.http.sdapi.controlnet import AlwaysOnScripts, ControlUnit
from apps.stable_diffusion.http.sdapi.neutral import CLIP_SKIP, MAX_CLIP_SKIP

NAMES = {
    "num_inference_steps": "steps",
    "guidance_scale": "cfg_scale",
    "scheduler": "sampler_name",
    "schedule": "scheduler",
    "n": "batch_size * n_iter",
    "strength": "denoising_strength",
    "size": "width, height",
    "image": "init_images",
    "loras": "prompt",
    "second_pass": "hr_second_pass_steps",
    "controlnets": "alwayson_scripts.controlnet",
}
"""Engine's field -> AUTOMATIC1111's."""
PICTURES = ("init_images", "mask", "alwayson_scripts")
"""Fields with pictures in them."""
SECOND_PASS = frozenset(("enable_hr", "hr_scale", "hr_resize_x", "hr_resize_y", "hr_upscaler", "hr_second_pass_steps"))


class Text2ImageBody(BaseModel):
    """POST /sdapi/v1/txt2img. null means absent. Fields that would change the picture and are not built are refused by
    name, unless they have a value that does nothing; unknown fields are ignored, as AUTOMATIC1111 does."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), use_attribute_docstrings=True)
    of_second_pass: ClassVar[frozenset[str]] = SECOND_PASS | {"denoising_strength"}

    prompt: str = ""
    negative_prompt: str | None = None
    steps: int | None = None
    cfg_scale: float | None = Field(None, allow_inf_nan=False)
    width: int | None = None
    height: int | None = None
    seed: int | None = -1
    sampler_name: str | None = None
    """A name of `/sdapi/v1/samplers` or an alias; ` Karras` may follow."""
    sampler_index: str | None = None
    """An older name of `sampler_name`."""
    scheduler: str | None = None
    """`Automatic`, which is the model's own, or `Karras`."""
    batch_size: int | None = Field(1, ge=1)
    n_iter: int | None = Field(1, ge=1)
    enable_hr: bool = False
    """Text to image alone: enlarge the picture's latents and draw over them. The size in the end is a served one."""
    hr_scale: float = Field(2.0, gt=0, le=16, allow_inf_nan=False)
    hr_resize_x: int = Field(0, ge=0)
    hr_resize_y: int = Field(0, ge=0)
    """In place of `hr_scale`; 0 follows the other."""
    hr_upscaler: str | None = None
    """A name of `/sdapi/v1/latent-upscale-modes`; default: Latent."""
    hr_second_pass_steps: int = Field(0, ge=0)
    """0: as many as `steps`."""
    denoising_strength: float = Field(0.75, allow_inf_nan=False)
    """Share of the steps that are run, at least one: of the second pass; from an image, 0 gives it back."""
    send_images: bool | None = True
    clip_skip: int | None = Field(None, ge=0, le=MAX_CLIP_SKIP)
    """Which layer of CLIP's text encoder is read, from the last; 0 is the server's default. Of 1.x and 2.x alone."""
    override_settings: dict[str, Any] | None = None
    """`CLIP_stop_at_last_layers` is `clip_skip`; others are refused unless they do nothing."""
    alwayson_scripts: AlwaysOnScripts | None = None
    """`{"controlnet": {"args": [unit, ...]}}`; other scripts do not run here."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body

    @field_validator("alwayson_scripts", mode="before")
    @classmethod
    def _nothing_is_no_script(cls, value: Any) -> Any:
        return value or None

    @property
    def layer(self) -> int | None:
        """Which is read of the text encoder, as `clip_skip` has it; None: the server's default."""
        return int(self.clip_skip or (self.override_settings or {}).get(CLIP_SKIP) or 0) or None

    @property
    def control_units(self) -> list[ControlUnit]:
        scripts = self.alwayson_scripts
        return [] if scripts is None or scripts.controlnet is None else scripts.controlnet.args

    @property
    def other_scripts(self) -> dict[str, Any]:
        return {} if self.alwayson_scripts is None else self.alwayson_scripts.model_extra or {}

    @property
    def pictures(self) -> int:
        return (self.batch_size or 1) * (self.n_iter or 1)

    @property
    def sampler(self) -> str | None:
        """The sampler's name, as the client writes it; None: the model's default."""
        name = self.sampler_name or self.sampler_index
        return None if not name or name.lower() == "automatic" else name

    @property
    def others(self) -> dict[str, Any]:
        """Fields that this dialect does not build."""
        return self.model_extra or {}

    @property
    def sent(self) -> dict[str, Any]:
        """The fields that are built, as the client sent them, without pictures."""
        unused = set() if self.enable_hr else self.of_second_pass
        return self.model_dump(exclude_none=True, exclude={*PICTURES, *unused, *self.others})


class Image2ImageBody(Text2ImageBody):
    """POST /sdapi/v1/img2img."""

    of_second_pass: ClassVar[frozenset[str]] = SECOND_PASS

    init_images: list[str] = Field(min_length=1, max_length=1)
    mask: str | None = None
    """Painted where it is white or, if it has transparency, opaque; of any size."""
    resize_mode: int = 0
    """0 stretches the image to width x height, 1 crops it."""
    inpainting_mask_invert: int = 0
    mask_blur: int | None = Field(None, ge=0, le=256)
    """Of both axes."""
    mask_blur_x: int = Field(4, ge=0, le=256)
    mask_blur_y: int = Field(4, ge=0, le=256)
    inpainting_fill: int = 0
    """What is under the mask first: 0 the colors around it, 1 the image."""
    inpaint_full_res: bool = True
    """Paints the mask's surroundings at width x height and pastes them back; false: the whole image."""
    inpaint_full_res_padding: int = Field(0, ge=0, le=4096)

    @field_validator("resize_mode")
    @classmethod
    def _offered_mode(cls, value: int) -> int:
        if value not in (0, 1):
            raise ValueError("is not offered; use 0 (stretch) or 1 (crop)")
        return value

    @property
    def blur(self) -> tuple[float, float]:
        """Of the mask's edge, in pixels, on each axis."""
        return (self.mask_blur_x, self.mask_blur_y) if self.mask_blur is None else (self.mask_blur, self.mask_blur)
