"""The kinds of pipelines that are served: what each is made of in diffusers' layout, and what tells it from others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLIP, VAE = ("CLIPTextModel",), ("AutoencoderKL",)


@dataclass(frozen=True)
class PipelineKind:
    """One kind of pipeline."""

    says: str
    """Its models, in words."""
    pipelines: tuple[str, ...]
    """diffusers' classes."""
    classes: Mapping[str, tuple[str, ...]]
    """Component with weights -> its class, by any of these names. Text encoders come first."""
    no_guidance: float = 1.0
    """The guidance scale, as its users write it, from which on down only the prompt counts."""
    emphasis: bool = True
    """Whether words of a prompt can have weights, and a prompt several chunks: with CLIP's text encoders."""
    flow: bool = False
    """Whether noise levels are those of flow matching, and texts those of a language model."""
    from_images: bool = True
    """Whether a picture may begin with an image, or with a picture that is enlarged in between."""

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(self.classes)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(name for name in self.classes if name.startswith("text_encoder"))

    @property
    def tokenizers(self) -> tuple[str, ...]:
        return tuple(name.replace("text_encoder", "tokenizer") for name in self.text_encoders)

    def guided(self, guidance_scale: float) -> bool:
        """Whether pictures of this guidance scale take a pass without the prompt, too."""
        return guidance_scale > self.no_guidance


PLAIN = PipelineKind(
    says="Stable Diffusion 1.x and 2.x",
    pipelines=(
        "StableDiffusionPipeline",
        "StableDiffusionImg2ImgPipeline",
        "StableDiffusionInpaintPipeline",
        "LatentConsistencyModelPipeline",
    ),
    classes={"text_encoder": CLIP, "unet": ("UNet2DConditionModel",), "vae": VAE},
)
XL = PipelineKind(
    says="Stable Diffusion XL",
    pipelines=("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
    classes={
        "text_encoder": CLIP,
        "text_encoder_2": ("CLIPTextModelWithProjection",),
        "unet": ("UNet2DConditionModel",),
        "vae": VAE,
    },
)
Z_IMAGE = PipelineKind(
    says="Z-Image",
    pipelines=("ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"),
    classes={
        "text_encoder": ("Qwen3Model", "Qwen3ForCausalLM"),
        "transformer": ("ZImageTransformer2DModel",),
        "vae": VAE,
    },
    no_guidance=0.0,
    emphasis=False,
    flow=True,
)
KLEIN = PipelineKind(
    says="FLUX.2 klein",
    pipelines=("Flux2KleinPipeline",),
    classes={
        "text_encoder": ("Qwen3ForCausalLM", "Qwen3Model"),
        "transformer": ("Flux2Transformer2DModel",),
        "vae": ("AutoencoderKLFlux2",),
    },
    emphasis=False,
    flow=True,
    from_images=False,
)
KINDS = (PLAIN, XL, Z_IMAGE, KLEIN)
SUPPORTED = (
    "Stable Diffusion 1.x, 2.x and XL, their Turbo and LCM variants, Z-Image and FLUX.2 klein, all in diffusers' layout"
)


def kind_of(pipeline: str | None) -> PipelineKind | None:
    """The kind of one of diffusers' pipelines; None: it is not served."""
    return next((kind for kind in KINDS if pipeline in kind.pipelines), None)


def kind_with(configs: Mapping[str, Mapping[str, Any]]) -> PipelineKind:
    """The kind whose components have these configs."""

    def matches(kind: PipelineKind) -> bool:
        own = (configs[name].get("_class_name", classes[0]) in classes for name, classes in kind.classes.items())
        return set(kind.components) == set(configs) and all(own)

    return next(filter(matches, KINDS))
