"""What models take and give besides plain text: images, tool calls, reasoning."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ray_configs.applications.roots import comma_separated
from ray_configs.base import Config

ToolCallFormat = Literal[
    "auto", "none", "hermes", "qwen3_coder", "llama", "pythonic", "mistral", "gemma", "deepseek", "harmony", "atem",
    "json",
]  # fmt: skip
"""How models write calls of tools; `auto` looks at the chat template."""
ReasoningFormat = Literal["auto", "none", "think", "mistral", "gemma"]
"""And their reasoning."""


def _names(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?", host):
            raise ValueError(
                f"{host!r} must be a host's name in small letters, such as images.example.com, or name:port"
            )
    return hosts


ImageHosts = Annotated[tuple[str, ...], BeforeValidator(comma_separated), AfterValidator(_names)]


class ImageInput(Config):
    """How a language model takes images."""

    image_tokens: int = Field(0, ge=0, le=2**20)
    """Tokens of images that the devices have room for, encoded: those of running prompts, and of earlier ones that may
    come again. One request may have as many. 0: the model reads text alone, and its vision tower is not loaded."""
    max_image_tokens: int = Field(1024, ge=16, le=2**14)
    """Most tokens of one image; a larger image is scaled down to them, or as far as the model's processor says."""

    image_hosts: ImageHosts = ()
    """Hosts from which a request may have images fetched by their http(s) URLs, with a port where it is not the
    scheme's own. Their addresses must be public. None: images are data URLs."""

    @model_validator(mode="after")
    def _largest_image_fits(self) -> "ImageInput":
        if self.image_hosts and not self.image_tokens:
            raise ValueError("image_hosts is for a model that takes images: set image_tokens, or leave it out")
        if 0 < self.image_tokens < self.max_image_tokens:
            raise ValueError(
                f"image_tokens ({self.image_tokens}) must be at least max_image_tokens ({self.max_image_tokens}), the "
                "tokens of one image: raise the first or lower the second"
            )
        return self
