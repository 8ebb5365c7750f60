"""Config of Stable Diffusion as a Serve application."""

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ray_configs.applications.replicas import AppConfig
from ray_configs.applications.roots import ModelRoots, NamedLocations

DEMO_MODEL = str(Path(__file__).resolve().parent.parent / "apps" / "stable_diffusion" / "demo" / "model")


class StableDiffusionConfig(AppConfig):
    """Stable Diffusion (1.x, 2.x, XL), Z-Image or FLUX.2 klein: `serve run apps.stable_diffusion:build model=PATH`."""

    import_path: ClassVar[str] = "apps.stable_diffusion:build"
    default_name: ClassVar[str] = "stable-diffusion"

    model: str = "CompVis/stable-diffusion-v1-4"
    """A checkpoint in diffusers' layout with safetensors: a local folder, a hub id, or an fsspec URL (gs://...). Or, of
    Stable Diffusion, a single safetensors file as people share them: local, at a URL, or OWNER/NAME/FILE of the hub."""
    tokenizer: str | None = None
    """A local folder or hub id with CLIP's tokenizer, which a single file does not have. Default:
    openai/clip-vit-large-patch14, from the hub."""
    vae: str | None = None
    """An autoencoder in place of the checkpoint's own: a folder in diffusers' layout or a safetensors file; local, at a
    URL, or OWNER/NAME or OWNER/NAME/FILE of the hub."""
    prediction: Literal["epsilon", "v_prediction"] | None = None
    """What the UNet of a single file predicts. Default: what the file says, else epsilon; 2.x must be told."""
    model_id: str | None = None
    """Name in requests and in the pictures' metadata; default: the last part of `model` (the demo is
    `podslice-sd-demo`)."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of weights and activations; float32 is for comparing backends."""
    backend: Literal["auto", "jax", "torch", "torch_xla"] = "auto"
    """auto: JAX on a TPU and on a CPU, where it was measured to be faster; PyTorch on a GPU."""
    scheduler: Literal["ddim", "euler", "euler-ancestral", "dpm-solver++", "lcm"] = "ddim"
    """Default sampler; a request may name another. Z-Image and FLUX.2 take euler alone."""
    sizes: tuple[str, ...] = ("512x512",)
    """Picture sizes, WIDTHxHEIGHT in pixels. Each is compiled before the replica is ready; other sizes are refused."""
    num_inference_steps: int = Field(50, ge=1, le=1000)
    """Default denoising steps; 50 is what Stable Diffusion 1 was published with."""
    max_inference_steps: int = Field(100, ge=1, le=1000)
    """Most denoising steps that a request may ask for."""
    guidance_scale: float = Field(7.5, ge=0, le=50)
    """Default weight of the prompt against the empty one; 1 and below turns guidance off (Turbo models). Z-Image's
    begins above 0, as in diffusers."""
    max_batch_size: int = Field(8, ge=1, le=256)
    """Pictures of one size (with transformers, of similar sizes) that are denoised together, whatever their steps and
    schedulers. They join and leave between steps. The batch is split over the slice's chips."""
    max_waiting: int = Field(64, ge=1)
    """Pictures that may wait for a place in the batch; one more is refused with 429 and Retry-After."""
    max_images_per_request: int = Field(4, ge=1, le=256)
    """Largest `n` of a request."""
    target_ongoing_requests: float = Field(8, gt=0)
    """Requests in flight per replica that autoscaling aims at."""
    zero_after_s: float | None = Field(None, ge=0)
    """How long a service with `min_replicas` 0 keeps its last replica without a request. None: Serve's delay for any
    other, ten minutes."""
    max_ongoing_requests: int = Field(64, ge=1)
    """Requests in flight at one replica; more wait in Serve's queue."""
    max_queued_requests: int = Field(128, ge=0)
    """Size of Serve's queue; one more request is refused with 503 and Retry-After."""
    clip_skip: int = Field(1, ge=1, le=100)
    """Default layer of CLIP's text encoder, counted from the last, that Stable Diffusion 1.x and 2.x read: 2 for models
    that were trained so, mostly of drawings. XL has its own."""
    max_prompt_tokens: int = Field(75, ge=75, le=750, multiple_of=75)
    """Tokens of a prompt that CLIP's text encoders read, 75 at a time, as in AUTOMATIC1111; what is beyond is dropped,
    with a warning. Every picture's steps take as long as with a prompt of so many, so that all share a batch."""
    loras: NamedLocations = Field(default_factory=dict)
    """LoRAs by name: each a safetensors file, or a folder with one, local, at an fsspec URL or on the hub (OWNER/NAME,
    OWNER/NAME/FILE). A prompt names one as `<lora:name:0.8>`, other requests in `loras`. On a command line:
    `loras='{"ink": "/loras/ink.safetensors"}'`."""
    lora_folder: str | None = None
    """A local folder, such as a mounted bucket, whose `*.safetensors` files are LoRAs too, by their names without the
    ending. `POST /sdapi/v1/refresh-loras` reads it anew."""
    lora_loading: bool = False
    """Answer `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: whoever may ask for pictures may then have the
    server read any LoRA of the hub, and those below `model_roots`. Needs `max_replicas` 1."""
    model_roots: ModelRoots | None = None
    """Folders and URL prefixes (`/loras,gs://bucket/loras`) below which `/v1/load_lora_adapter` may load LoRAs.
    Default: it loads only from the hub."""
    max_lora_rank: int = Field(64, ge=1, le=1024)
    """Sum of the ranks of the LoRAs that one picture may have. All are filled up to it: it costs memory and time, also
    for pictures without LoRA, as soon as `loras`, `lora_folder` or `lora_loading` is set."""
    lora_slots: int = Field(4, ge=1, le=256)
    """Combinations of LoRAs and weights that are on the devices at a time. A picture with another one waits until the
    pictures of one of them have ended."""
    controlnets: NamedLocations = Field(default_factory=dict)
    """ControlNets by name, of Stable Diffusion: each a folder in diffusers' layout or a safetensors file; local, at a
    URL, or OWNER/NAME or OWNER/NAME/FILE of the hub. A request names one with its map (edges, depth, a pose). A step
    with one takes half as long again, for all pictures of its batch. On a command line:
    `controlnets='{"canny": "/controlnets/canny"}'`."""
    safety_checker: str | None = None
    """Hide what diffusers' safety checker finds: a local folder or hub id of a pipeline with one, or of the checker
    (CompVis/stable-diffusion-safety-checker). It looks at each picture and preview on the CPU; what it finds is black,
    and the answer says so."""
    compile_cache: str | None = "~/.cache/podslice/jax"
    """Folder of JAX's persistent compilation cache: a UNet takes minutes to compile; or a bucket's, sealed as prepared
    programs are. None: no cache."""
    prepared_programs: str | None = None
    """Folder or URL of programs that `podslice prepare CONFIG --to` compiled. A replica that finds those for its slice
    compiles none."""
    health_step_deadline_s: float = Field(300, gt=0)
    """A step longer than this counts as stuck: its requests end with an error, the replica fails its health check."""
    drain_timeout_s: float = Field(120, ge=0)
    """How long a stopping replica waits for its requests in flight. On Kubernetes, node drains wait for it too, but a
    preempted Spot machine leaves 105 seconds, or 15: see `Spot`."""

    @field_validator("sizes", mode="before")
    @classmethod
    def _comma_separated(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("sizes")
    @classmethod
    def _multiples_of_eight(cls, sizes: tuple[str, ...]) -> tuple[str, ...]:
        for size in sizes:
            match = re.fullmatch(r"(\d+)x(\d+)", size)
            if match is None or any(int(n) % 8 or not 64 <= int(n) <= 2048 for n in match.groups()):
                raise ValueError(
                    f"size {size!r} must be WIDTHxHEIGHT in multiples of 8 from 64 to 2048, such as 512x512"
                )
        if not sizes:
            raise ValueError("sizes must name at least one size, such as 512x512")
        return sizes

    @property
    def pixel_sizes(self) -> tuple[tuple[int, int], ...]:
        """Width and height of each of the sizes."""
        sides = (size.split("x") for size in self.sizes)
        return tuple((int(width), int(height)) for width, height in sides)

    @property
    def prompt_chunks(self) -> int:
        """Chunks of 75 tokens that a prompt may have."""
        return self.max_prompt_tokens // 75

    @property
    def has_loras(self) -> bool:
        """Whether the programs have places for LoRAs."""
        return bool(self.loras or self.lora_folder or self.lora_loading)

    @field_validator("controlnets")
    @classmethod
    def _names_of_controlnets(cls, controlnets: dict[str, str]) -> dict[str, str]:
        for name in controlnets:
            if not name or name.lower() == "none" or set(name) & set("[]"):
                raise ValueError(f"controlnets: {name!r} must be a name without [ ], which hold a hash in web UIs")
        return controlnets

    @field_validator("loras")
    @classmethod
    def _names_of_loras(cls, loras: dict[str, str]) -> dict[str, str]:
        for name in loras:
            if not name or set(name) & set("<>:="):
                raise ValueError(f"loras: {name!r} must be a name without < > : =, which end it in a prompt")
        return loras

    @model_validator(mode="after")
    def _loras_can_be_loaded(self) -> "StableDiffusionConfig":
        if self.lora_loading and self.max_replicas != 1:
            raise ValueError(
                "lora_loading reaches only the replica that takes the request: set max_replicas 1, or name the LoRAs "
                "in `loras`, which every replica loads"
            )
        if self.has_loras and self.backend not in ("auto", "jax"):
            raise ValueError(f"backend {self.backend} has no LoRA: set backend jax, or leave loras out")
        if self.controlnets and self.backend not in ("auto", "jax"):
            raise ValueError(f"backend {self.backend} has no ControlNet: set backend jax, or leave controlnets out")
        return self

    @model_validator(mode="after")
    def _default_steps_allowed(self) -> "StableDiffusionConfig":
        if self.num_inference_steps > self.max_inference_steps:
            raise ValueError(
                f"num_inference_steps ({self.num_inference_steps}) is above max_inference_steps "
                f"({self.max_inference_steps})"
            )
        return self

    @property
    def image_name(self) -> str:
        return "stable-diffusion"

    @property
    def served_name(self) -> str:
        if self.model_id:
            return self.model_id
        if self.model == DEMO_MODEL:
            return "podslice-sd-demo"
        return self.model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".safetensors")

    @classmethod
    def demo(cls, **changes: Any) -> "StableDiffusionConfig":
        """The demo model: at the only size that it was trained for, and in float32, which a CPU computes faster than
        bfloat16."""
        demo = {"model": DEMO_MODEL, "sizes": ("64x64",), "dtype": "float32"}
        return cls(**{**demo, "num_inference_steps": 25, "guidance_scale": 3.0, **changes})
