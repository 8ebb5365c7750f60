"""Routes and error handling of every application: its health, its models, and errors for unknown paths."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.serving.errors import EngineStopped
from apps.serving.ingress.api_keys import Principals, RequireKey
from apps.serving.ingress.openai_errors import OpenAIError


class Answering(Protocol):
    """What these routes need of a model."""

    def card(self) -> dict[str, Any]:
        """The model's entry in OpenAI's list of models."""

    def report(self) -> dict[str, Any]:
        """Its load, in numbers."""

    def check(self) -> None:
        """Raises EngineStopped if it cannot answer."""


M = TypeVar("M", bound=Answering)


def find_model(models: Mapping[str, M], name: str | None) -> M:
    """The served model that a request names; the only one needs no name. Raises OpenAIError."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise OpenAIError(400, f"model is needed: one of {', '.join(models)}", "model", "missing_required_parameter")
    if name not in models:
        message = f"The model '{name}' does not exist. Served here: {', '.join(models)}."
        raise OpenAIError(404, message, "model", "model_not_found")
    return models[name]


def models_router(models: Mapping[str, Answering]) -> APIRouter:
    """OpenAI's /v1/models, and the health that probes query."""
    router = APIRouter()

    @router.get("/v1/models", tags=["OpenAI"])
    async def list_models() -> Any:
        """What is served."""
        return {"object": "list", "data": [model.card() for model in models.values()]}

    @router.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def get_model(name: str) -> Any:
        """One model."""
        return find_model(models, name).card()

    @router.get("/health", tags=["Server"])
    @router.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        """Whether each model can answer, and how busy it is."""
        reports = {name: model.report() for name, model in models.items()}
        well = True
        for name, model in models.items():
            try:
                model.check()
            except EngineStopped as error:
                well, reports[name]["failure"] = False, str(error)
        return JSONResponse({"status": "ok" if well else "failed", "models": reports}, 200 if well else 503)

    return router


def unknown_path(request: Request, error: HTTPException) -> str:
    """A message for the errors that FastAPI raises itself: no such path, or no such method on it."""
    hint = {404: f"There is nothing at {request.url.path}.", 405: f"{request.url.path} has no {request.method}."}
    return hint.get(error.status_code, str(error.detail))


def as_openai(scope: Mapping[str, Any], error: OpenAIError) -> Response:
    return error.response()


def answer_errors(
    app: FastAPI, keys: Principals, written: Callable[[Mapping[str, Any], OpenAIError], Response] = as_openai
) -> None:
    """Add error handlers; if there are keys, require one.

    Args:
        written: turns an error into the response that clients of the path expect.
    """

    @app.exception_handler(OpenAIError)
    async def refused(request: Request, error: OpenAIError) -> Response:
        return written(request.scope, error)

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        response = written(request.scope, OpenAIError(error.status_code, unknown_path(request, error)))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        broken = OpenAIError(500, "The server failed; its log says why.", None, "internal_error")
        return written(request.scope, broken)

    if keys:
        app.add_middleware(
            RequireKey,
            principals=keys,
            refused=lambda scope, message: written(scope, OpenAIError(401, message, None, "invalid_api_key")),
        )
