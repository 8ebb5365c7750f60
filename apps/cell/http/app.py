"""The front's HTTP application: the dialects, and the health and error handlers that they share."""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.cell.errors import CellError, NotPublished
from apps.cell.http.dispatcher import Dispatcher, Front
from apps.cell.http.openai import openai_router
from apps.cell.http.saxml import saxml_router
from apps.serving.ingress.api_keys import RequireKey, principal_of
from apps.serving.ingress.application import HeadAsGet, PanicsAreErrors, unknown_path
from apps.serving.ingress.bodies import BodyRefused
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_unread
from apps.serving.ingress.dialects.saxml_answers import by_path, failed, failure
from apps.serving.ingress.same_machine import SameMachine
from apps.serving.pages import Try, add_pages


def http_app(
    cell: str,
    front: Front,
    keys: Mapping[bytes, str],
    for_this_machine: bool = False,
    origins: Collection[str] = (),
) -> FastAPI:
    """The ASGI application. With `keys` (digest -> principal), requests need one of them.

    Args:
        for_this_machine: refuse what pages of other sites send through a browser on this machine.
        origins: other sites that may.
    """
    dispatcher = Dispatcher(cell, front)
    about = "Models published at run time on Cloud TPU slices."
    app = FastAPI(title="Podslice cell", description=about, docs_url=None, redoc_url=None)
    app.include_router(saxml_router(cell, front, dispatcher), tags=["Saxml"])
    app.include_router(openai_router(dispatcher))

    def served(request: Request) -> str:
        if keys and principal_of(request.scope) is None:
            return f"/sax/{cell}; its models are shown to who has a key"
        models = ", ".join(front.view.entries) if front.view else ""
        return f"/sax/{cell}: {models or 'nothing is published'}"

    lines = [Try("What is published:", "curl{key} {url}/listall")]
    add_pages(app, served, lines, ("/docs", "/v1/models", "/health"), bool(keys), for_browsers=True)

    @app.get("/health", tags=["Server"])
    @app.get("/healthz", include_in_schema=False)
    @app.get("/healthcheck", include_in_schema=False)
    async def health(request: Request) -> Response:
        """Whether the cell answers, and what is published; the latter, where there are keys, only to who has one."""
        view = front.view
        told = not keys or principal_of(request.scope) is not None
        models = {} if view is None or not told else {name: entry["state"] for name, entry in view.entries.items()}
        if view is None:
            return JSONResponse({"status": "starting", "models": models}, 503)
        return JSONResponse({"status": "ok", "models": models})

    @app.exception_handler(CellError)
    async def refused(request: Request, error: CellError) -> Response:
        code = "model_not_found" if isinstance(error, NotPublished) else None
        return by_path(request.scope, OpenAIError(error.status, str(error), None, code, error.retry_after_s))

    @app.exception_handler(BodyRefused)
    async def unread(request: Request, error: BodyRefused) -> Response:
        return by_path(request.scope, from_unread(error))

    @app.exception_handler(OpenAIError)
    async def openai_refused(request: Request, error: OpenAIError) -> Response:
        return anthropic_errors.by_path(request.scope, error)

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        # Saxml's HTTP server answers only this message, with 400; the real status helps more.
        sentence = unknown_path(request, error)
        content = {"message": "Invalid Request", **failure(sentence)}
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return failed("The server failed; its log says why.", 500)

    def turned_away(scope: Mapping[str, Any], status: int, message: str) -> Response:
        return by_path(scope, OpenAIError(status, message, None, "invalid_api_key" if status == 401 else None))

    app.add_middleware(PanicsAreErrors)
    app.add_middleware(HeadAsGet)
    if keys:
        app.add_middleware(RequireKey, principals=keys, refused=lambda scope, told: turned_away(scope, 401, told))
    elif for_this_machine:
        app.add_middleware(SameMachine, refused=turned_away, origins=origins)
    return app
