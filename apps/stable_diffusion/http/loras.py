"""LoRAs: how requests name them, and the endpoints that load and unload them, as vLLM has them for language models."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field
from starlette.responses import PlainTextResponse, Response

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import OpenAIError, parsed, refusing
from apps.serving.ingress.openapi import json_body
from apps.serving.model_roots import HUB, is_hub_id, permitted
from apps.stable_diffusion.engine.request import LoraUse
from apps.stable_diffusion.pictures import PictureModel


class LoraBody(Body):
    """A LoRA that pictures are made with."""

    name: str
    weight: float = Field(1.0, allow_inf_nan=False)
    text_weight: float | None = Field(None, allow_inf_nan=False)
    """Of what it adds to the text encoders; default: `weight`."""

    @property
    def use(self) -> LoraUse:
        return LoraUse(self.name, self.weight, self.weight if self.text_weight is None else self.text_weight)


def from_form(example: str) -> Callable[[Any], Any]:
    """A validator of a field that is JSON; in a form it is text."""

    def read(value: Any) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            raise ValueError(f"must be JSON, such as {example}") from None

    return read


LoraBodies = Annotated[
    list[LoraBody], Field(max_length=64), BeforeValidator(from_form('[{"name": "ink", "weight": 0.8}]'))
]


def uses_of(loras: Sequence[LoraBody] | None) -> tuple[LoraUse, ...]:
    return tuple(lora.use for lora in loras or ())


def uses_in_query(text: str) -> tuple[LoraUse, ...]:
    """`ink:0.8,face` as a URL's parameter. Raises RequestError: a weight is no number."""
    uses = []
    for part in filter(None, text.split(",")):
        name, _, weight = part.partition(":")
        try:
            uses.append(LoraUse(name, *([float(weight)] * 2 if weight else ())))
        except ValueError as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError("loras", f"loras: {part!r:.100} is not a name, or a name:weight") from None
    return tuple(uses)


class LoadLoraBody(Body):
    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1)]
    """On the hub OWNER/NAME or OWNER/NAME/FILE, or a file or URL below the config's `model_roots`."""


class UnloadLoraBody(Body):
    lora_name: str
    lora_int_id: int | None = None
    """Accepted and ignored."""


def loras_router(model: PictureModel) -> APIRouter:
    """The endpoints over this model; without `lora_loading` in its config, they refuse."""
    router = APIRouter()

    def check_loading() -> None:
        if not model.config.lora_loading:
            raise OpenAIError(404, "LoRAs cannot be loaded or unloaded here: lora_loading is not set in the config.")

    @router.post("/v1/load_lora_adapter", openapi_extra=json_body(LoadLoraBody))
    async def load_lora(request: Request) -> Response:
        """Loads a LoRA. Answers once requests may name it."""
        check_loading()
        body = await parsed(LoadLoraBody, request)
        location = _readable(model, body.lora_path)
        if location is None:
            message = "lora_path: must be on the hub, or below one of the places in model_roots of the server's config"
            raise OpenAIError(400, message, "lora_path", "invalid_value")
        roots = () if model.config.model_roots is None else model.config.model_roots
        try:
            with refusing():
                await asyncio.to_thread(model.loras.load, body.lora_name, location, roots)
        except (CheckpointError, OSError, ValueError, ImportError) as error:  # of the file system that the path names
            raise OpenAIError(400, f"lora_path: {error}", "lora_path", "invalid_value") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", openapi_extra=json_body(UnloadLoraBody))
    async def unload_lora(request: Request) -> Response:
        """Unloads a LoRA. New requests no longer find it; pictures that have begun keep it."""
        check_loading()
        body = await parsed(UnloadLoraBody, request)
        with refusing():
            model.loras.unload(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


def _readable(model: PictureModel, location: str) -> str | None:
    """What may be read where a caller names it; None: neither on the hub nor below `model_roots`, nor of the config."""
    if location in model.config.loras.values():
        return location
    owner = location.removeprefix(HUB)
    if owner.endswith(".safetensors"):
        owner = owner.rpartition("/")[0]
    on_hub = is_hub_id(owner) and owner.count("/") == 1
    return HUB + location.removeprefix(HUB) if on_hub else permitted(location, model.config.model_roots or ())
