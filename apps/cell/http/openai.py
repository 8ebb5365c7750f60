"""The OpenAI and Anthropic dialects of a cell: every published model by its name, `/sax/test/m` or `m`."""

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from apps.cell.calls import Entry
from apps.cell.http.dispatcher import Dispatcher, streamed
from apps.cell.http.saxml import OF_A_MODEL
from apps.serving.ingress.bodies import BodyTooLarge
from apps.serving.ingress.dialects.anthropic_errors import PATHS
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.json_body import BadJSON, parsed_object, read_json
from apps.serving.ingress.openapi import STREAMED

COUNT = f"{PATHS}/count_tokens"
METHODS = {
    "/v1/completions": "lm.generate",
    "/v1/chat/completions": "lm.generate",
    "/v1/responses": "lm.generate",
    "/v1/embeddings": "lm.embed",
    PATHS: "lm.generate",
    COUNT: "lm.generate",
}


def openai_router(dispatcher: Dispatcher) -> APIRouter:
    """The dialects' routes. Only `model` and `stream` are read here; the models themselves read the rest."""
    router = APIRouter()

    @router.get("/v1/models", tags=["OpenAI"])
    async def list_models() -> Any:
        """All published models."""
        return {"object": "list", "data": [_card(entry) for entry in dispatcher.view().entries.values()]}

    @router.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def get_model(name: str) -> Any:
        """One published model, by either of its names."""
        entries = dispatcher.view().entries
        for known in (f"/{name}", name):  # a URL keeps only one slash before a name that begins with one
            if known in entries:
                return _card(entries[known])
        return _card(entries[await dispatcher.full_name(name)])

    @router.post("/v1/completions", openapi_extra=OF_A_MODEL, responses=STREAMED, tags=["OpenAI"])
    @router.post("/v1/chat/completions", openapi_extra=OF_A_MODEL, responses=STREAMED, tags=["OpenAI"])
    @router.post("/v1/responses", openapi_extra=OF_A_MODEL, responses=STREAMED, tags=["OpenAI"])
    @router.post("/v1/embeddings", openapi_extra=OF_A_MODEL, tags=["OpenAI"])
    @router.post(PATHS, openapi_extra=OF_A_MODEL, responses=STREAMED, tags=["Anthropic"])
    @router.post(COUNT, openapi_extra=OF_A_MODEL, tags=["Anthropic"])
    async def call(request: Request) -> Response:
        """Answered by the published model."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        try:
            data = await read_json(request)
            body = parsed_object(data)
        except BodyTooLarge as error:
            raise OpenAIError(413, str(error), None, "request_too_large") from error
        except BadJSON as error:
            raise OpenAIError(400, str(error), error.field, error.code) from error
        if not isinstance(body.get("model"), str | None):
            raise OpenAIError(400, "The body must be a JSON object whose model is a string.", "model", "invalid_type")
        model = await dispatcher.full_name(body.get("model"))
        method = METHODS[path]
        if streamed(body) and method == "lm.generate":
            method = "lm.generate_stream"
        if body.get("model") != model:
            data = json.dumps(body | {"model": model}).encode()
        return await dispatcher.call(request, model, method, path, data)

    @router.get("/v1/responses/{response_id:path}", tags=["OpenAI"])
    @router.delete("/v1/responses/{response_id:path}", tags=["OpenAI"])
    async def kept(response_id: str) -> Any:
        """Always 404: a cell's models do not store responses."""
        message = "A cell keeps no responses: send the whole conversation as input, with store: false or without it."
        raise OpenAIError(404, message, "response_id", "response_not_found")

    return router


def _card(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry["model"],
        "object": "model",
        "created": entry["published_at"],
        "owned_by": "podslice",
        "state": entry["state"],
        "active_replicas": entry["active_replicas"],
    }
