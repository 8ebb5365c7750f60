"""Routes and error handling of every application: its health, its models, and errors for unknown paths."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from apps.serving.errors import AnswerFailed, EngineStopped, panics_as
from apps.serving.ingress.api_keys import Asgi, Principals, RequireKey
from apps.serving.ingress.bodies import BodyRefused
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_unread
from apps.serving.ingress.retries import JoinsRetries


class HostedModel(Protocol):
    """What a replica and these routes need of a loaded model."""

    name: str

    def cards(self) -> list[dict[str, Any]]:
        """Its entry in OpenAI's list of models, and those of its variants."""

    def report(self) -> dict[str, Any]:
        """Its load, in numbers."""

    def check(self) -> None:
        """Raises EngineStopped if its engine cannot answer."""

    async def report_forever(self) -> None:
        """Publishes metrics."""

    def shutdown(self) -> None:
        """Ends the engine; open requests fail with an error that says so."""


def check_name(model: HostedModel, name: str | None) -> None:
    """Raises OpenAIError if a request names another model than the one that is served; it need not name any."""
    if name not in (None, model.name):
        message = f"The model '{name}' does not exist. Served here: {model.name}."
        raise OpenAIError(404, message, "model", "model_not_found")


def models_router(model: HostedModel) -> APIRouter:
    """OpenAI's /v1/models, and the health that probes query."""
    router = APIRouter()

    @router.get("/v1/models", tags=["OpenAI"])
    async def list_models() -> Any:
        """What is served."""
        return {"object": "list", "data": model.cards()}

    @router.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def get_model(name: str) -> Any:
        """One model."""
        card = next((card for card in model.cards() if card["id"] == name), None)
        if card is None:
            check_name(model, name)
        return card

    @router.get("/health", tags=["Server"])
    @router.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        """Whether each model can answer, and how busy it is."""
        report = model.report()
        try:
            model.check()
        except EngineStopped as error:
            failed = {model.name: report | {"failure": str(error)}}
            return JSONResponse({"status": "failed", "models": failed}, 503)
        return JSONResponse({"status": "ok", "models": {model.name: report}})

    return router


def unknown_path(request: Request, error: HTTPException) -> str:
    """A message for the errors that FastAPI raises itself: no such path, or no such method on it."""
    hint = {404: f"There is nothing at {request.url.path}.", 405: f"{request.url.path} has no {request.method}."}
    return hint.get(error.status_code, str(error.detail))


class PanicsAreErrors:
    """ASGI middleware: a library's panic is an Exception, which the error handlers answer as any other failure."""

    def __init__(self, app: Asgi):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        with panics_as(AnswerFailed):
            await self._app(scope, receive, send)


class HeadAsGet:
    """ASGI middleware: HEAD is answered as GET is, without the body."""

    def __init__(self, app: Asgi):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: dict[str, Any]) -> None:
            await send(message | {"body": b""} if message["type"] == "http.response.body" else message)

        await self._app(scope | {"method": "GET"}, receive, without_body)


def answer_errors(
    app: FastAPI,
    keys: Principals,
    written: Callable[[Mapping[str, Any], OpenAIError], Response] = lambda _, error: error.response(),
) -> None:
    """Add error handlers; if there are keys, require one.

    Args:
        written: turns an error into the response that clients of the path (in an ASGI scope) expect; default: OpenAI's.
    """

    @app.exception_handler(OpenAIError)
    async def refused(request: Request, error: OpenAIError) -> Response:
        return written(request.scope, error)

    @app.exception_handler(BodyRefused)
    async def unread(request: Request, error: BodyRefused) -> Response:
        return written(request.scope, from_unread(error))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        response = written(request.scope, OpenAIError(error.status_code, unknown_path(request, error)))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        broken = OpenAIError(500, "The server failed; its log says why.", None, "internal_error")
        return written(request.scope, broken)

    app.add_middleware(JoinsRetries, refused=written)
    app.add_middleware(PanicsAreErrors)
    app.add_middleware(HeadAsGet)
    if keys:
        app.add_middleware(
            RequireKey,
            principals=keys,
            refused=lambda scope, message: written(scope, OpenAIError(401, message, None, "invalid_api_key")),
        )
