"""LoRA adapters: the one that a request names, and vLLM's endpoints that load and unload them."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from apps.arrays.model_folder import CheckpointError
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import OpenAIError, parsed, refusing
from apps.serving.ingress.openapi import json_body


class LoadAdapterBody(Body):
    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1)]
    """A hub id, or a folder or URL in PEFT's layout below the config's `model_roots`."""


class UnloadAdapterBody(Body):
    lora_name: str
    lora_int_id: int | None = None
    """Accepted and ignored."""


def named(model: TextModel, name: str | None) -> TextModel:
    """The served model, if a request names it or none; with an adapter, if it names that or `model:adapter`.

    Raises:
        OpenAIError: nothing of that name is served.
    """
    if name in (None, model.name):
        return model
    adapter = model.adapter_named(name)
    if adapter is None:
        served = ", ".join([model.name, *(card["id"] for card in model.cards()[1:])])
        message = f"The model '{name}' does not exist. Served here: {served}."
        raise OpenAIError(404, message, "model", "model_not_found")
    return model.with_adapter(adapter, name)


def adapters_router(model: TextModel, loading: bool) -> APIRouter:
    """The endpoints over this model; without `loading`, they refuse."""
    router = APIRouter()

    def check_loading() -> None:
        if not loading:
            message = "Adapters cannot be loaded or unloaded here: adapter_loading is not set in the server's config."
            raise OpenAIError(404, message)

    @router.post("/v1/load_lora_adapter", openapi_extra=json_body(LoadAdapterBody))
    async def load_adapter(request: Request) -> Response:
        """Loads a LoRA adapter, as vLLM does. Answers once requests may name it."""
        check_loading()
        body = await parsed(LoadAdapterBody, request)
        if body.lora_name == model.name:
            message = f"lora_name: {model.name} is the model's own name; choose another"
            raise OpenAIError(400, message, "lora_name", "invalid_value")
        location = model.readable(body.lora_path)
        if location is None:
            message = "lora_path: must be a hub id, or below one of the places in model_roots of the server's config"
            raise OpenAIError(400, message, "lora_path", "invalid_value")
        try:
            with refusing():
                await model.load_adapter(body.lora_name, location)
        except (CheckpointError, OSError, ValueError, ImportError) as error:  # of the file system that the path names
            raise OpenAIError(400, f"lora_path: {error}", "lora_path", "invalid_value") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", openapi_extra=json_body(UnloadAdapterBody))
    async def unload_adapter(request: Request) -> Response:
        """Unloads a LoRA adapter, as vLLM does. New requests no longer find it; answers when its own have ended."""
        check_loading()
        body = await parsed(UnloadAdapterBody, request)
        with refusing({"model": "lora_name"}):
            await model.unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router
