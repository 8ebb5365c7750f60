"""Bodies of OpenAI's image endpoints, with the additional fields that Stable Diffusion needs.

Types are strict in JSON, as OpenAI's are; a form's fields are all text, and are parsed as numbers where needed. null
means absent; unknown fields (`quality`, `style`, `user` ...) are ignored.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from apps.serving.ingress.bodies import MAX_BYTES, Body, BodyTooLarge, in_pieces, read_body
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_body
from apps.stable_diffusion.http.controls import ControlBodies
from apps.stable_diffusion.http.loras import LoraBodies

ONLY = {
    "output_format": ("png", "pictures carry their parameters in PNG's metadata"),
    "background": ("opaque", "Stable Diffusion makes no transparent pictures"),
}
"""Field -> (its only value besides absent or `auto`; why)."""


class GenerationBody(Body):
    """POST /v1/images/generations."""

    model_config = ConfigDict(populate_by_name=True)

    prompt: str
    model: str | None = None
    n: int | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    """`url` gives a data URL: this server keeps no files."""
    output_format: str | None = None
    background: str | None = None
    stream: bool | None = None
    partial_images: int | None = Field(None, ge=0, le=3)
    # Beyond OpenAI's:
    negative_prompt: str | None = None
    emphasis: bool | None = None
    """Read `(red:1.5)`, `[red]` and `BREAK` in the prompts as AUTOMATIC1111 does."""
    clip_skip: int | None = Field(None, ge=1)
    """Read CLIP's text encoder at another layer than its last: 2 is the last but one, as in AUTOMATIC1111."""
    seed: int | None = None
    num_inference_steps: int | None = Field(None, validation_alias=AliasChoices("num_inference_steps", "steps"))
    guidance_scale: float | None = Field(None, allow_inf_nan=False)
    scheduler: str | None = None
    loras: LoraBodies | None = None
    """What `<lora:name:0.8>` is in AUTOMATIC1111's prompts: `[{"name": "ink", "weight": 0.8}]`."""
    controlnets: ControlBodies | None = None
    """`[{"name": "edges", "image": "..."}]`, each with the map that it reads, as base64."""
    progress: bool | None = None
    """With `stream`: an event for each step, which OpenAI's API does not have."""

    @field_validator(*ONLY)
    @classmethod
    def _offered(cls, value: str | None, info: ValidationInfo) -> str | None:
        allowed, why = ONLY[info.field_name or ""]
        if value not in (None, "auto", allowed):
            raise ValueError(f"{value!r} is not offered; use {allowed!r}: {why}")
        return value

    @field_validator("partial_images", "progress")
    @classmethod
    def _of_a_stream(cls, value: Any, info: ValidationInfo) -> Any:
        if value and not info.data.get("stream"):
            raise ValueError("may only be given with stream: true")
        return value


class EditBody(GenerationBody):
    """POST /v1/images/edits, without the uploaded files."""

    strength: float | None = Field(None, allow_inf_nan=False)
    """Beyond OpenAI's: share of the steps that are run, 0 to 1; 1 forgets the image."""
    input_fidelity: Literal["low", "high"] | None = None


class VariationBody(EditBody):
    """POST /v1/images/variations, without the uploaded file."""

    prompt: str = ""
    """Beyond OpenAI's: what the variation should show."""


E = TypeVar("E", bound=EditBody)


async def read_edit(request: Request, kind: type[E]) -> tuple[E, bytes, bytes | None]:
    """Read the form: its fields, the image and the mask. Raises OpenAIError."""
    form = await _read_form(request)
    try:
        images = [item for name in ("image", "image[]") for item in form.getlist(name)]
        if len(images) != 1 or not isinstance(images[0], UploadFile):
            found = f"there are {len(images)}" if images else "there is none"
            raise OpenAIError(400, f"image: one file is needed, and {found}", "image", "invalid_value")
        mask = form.get("mask")
        if mask is not None and not isinstance(mask, UploadFile):
            raise OpenAIError(400, "mask: must be a file", "mask", "invalid_type")
        try:
            body = kind.model_validate(_texts(form), strict=False)
        except ValidationError as error:
            raise from_body(error) from None
        return body, await images[0].read(), None if mask is None else await mask.read()
    finally:
        await form.close()


def _texts(form: FormData) -> Mapping[str, str]:
    return {name: value for name, value in form.items() if isinstance(value, str) and value != ""}


class _InMemory(MultiPartParser):
    """Keeps uploads in memory: the body is bounded and in memory already."""

    spool_max_size = MAX_BYTES + 1


async def _read_form(request: Request) -> FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        message = "The request must be multipart/form-data with an image and a prompt."
        raise OpenAIError(400, message, None, "invalid_content_type")
    try:
        body = await read_body(request)
    except BodyTooLarge as error:
        raise from_body(error) from None

    try:
        return await _InMemory(request.headers, in_pieces(body), max_files=4, max_fields=64).parse()
    except MultiPartException as error:
        raise OpenAIError(400, f"The form cannot be read: {error.message}", None, "invalid_form") from None
