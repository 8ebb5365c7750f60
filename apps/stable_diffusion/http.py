"""The HTTP application: the faces, side by side, and what belongs to none of them."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.ingress.api_keys import OPEN, Principals, RequireKey
from apps.ingress.openai_errors import OpenAIError
from apps.stable_diffusion.engine.job import EngineStopped
from apps.stable_diffusion.imagine import imagine_router
from apps.stable_diffusion.openai import openai_router
from apps.stable_diffusion.pictures import PictureModel
from apps.stable_diffusion.sdapi import sdapi_router


def http_app(model: PictureModel, keys: Principals = OPEN) -> FastAPI:
    """An ASGI application that answers for this model; with keys, only to those who hold a key."""
    app = FastAPI(title="Podslice", description="Stable Diffusion on Cloud TPU slices.")
    app.include_router(imagine_router(model), tags=["Pictures"])
    app.include_router(openai_router(model), tags=["OpenAI"])
    app.include_router(sdapi_router(model), tags=["AUTOMATIC1111"])

    @app.get("/health", tags=["Server"])
    @app.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        """Whether the model can answer, and how busy it is."""
        backend = model.engine.backend
        report: dict[str, Any] = asdict(model.stats()) | {"backend": backend.name, "device": backend.device}
        well = True
        try:
            model.check()
        except EngineStopped as error:
            well, report["failure"] = False, str(error)
        body = {"status": "ok" if well else "failed", "models": {model.name: report}}
        return JSONResponse(body, 200 if well else 503)

    @app.exception_handler(OpenAIError)
    async def refused(request: Request, error: OpenAIError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        hint = {404: f"There is nothing at {request.url.path}.", 405: f"{request.url.path} has no {request.method}."}
        message = hint.get(error.status_code, str(error.detail))
        response = OpenAIError(error.status_code, message).response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return OpenAIError(500, "The server failed; its log says why.", None, "internal_error").response()

    if keys:
        app.add_middleware(
            RequireKey,
            principals=keys,
            refused=lambda message: OpenAIError(401, message, None, "invalid_api_key").response(),
        )
    return app
