"""What an application says where no route of its own does: unknown paths, missing keys, failures, all as OpenAI's."""

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from apps.serving.ingress.api_keys import Principals, RequireKey
from apps.serving.ingress.openai_errors import OpenAIError


def unknown_path(request: Request, error: HTTPException) -> str:
    """A sentence for what FastAPI answers itself: there is no such path, or no such method of it."""
    hint = {404: f"There is nothing at {request.url.path}.", 405: f"{request.url.path} has no {request.method}."}
    return hint.get(error.status_code, str(error.detail))


def answer_as_openai(app: FastAPI, keys: Principals) -> None:
    """Adds the handlers of errors; with keys, lets only those in who hold one."""

    @app.exception_handler(OpenAIError)
    async def refused(request: Request, error: OpenAIError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        response = OpenAIError(error.status_code, unknown_path(request, error)).response()
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
