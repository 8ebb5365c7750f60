"""The front's HTTP application: Saxml's calls, the models' own, and what belongs to neither."""

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.cell import acl
from apps.cell.errors import CellError, NotAllowed, NotPublished, Unavailable
from apps.cell.relay import Relay
from apps.ingress.api_keys import RequireKey
from apps.ingress.application import unknown_path
from apps.ingress.openai_errors import OpenAIError


class Front(Protocol):
    """What the faces ask."""

    view: Any
    """The server's View; None until the admin was heard of."""

    async def look(self) -> None:
        """Brings the view up to date."""
        ...

    async def ask(self, method: str, principal: str | None, body: dict[str, Any]) -> Any:
        """What the admin answers. Raises CellError."""
        ...


class Caller:
    """Finds a published model for a request, checks that its caller may use it, and passes the request on."""

    def __init__(self, cell: str, front: Front, relay: Relay):
        self._cell, self._front, self._relay = cell, front, relay

    async def full_name(self, model: str | None) -> str:
        """`m`, `/sax/test/m` or, where only one is published, nothing. Raises CellError."""
        if (name := self._known(model)) is None:
            await self._front.look()  # it may have been published a moment ago
            name = self._known(model)
        if name is not None:
            return name
        there = ", ".join(self.view().entries) or "nothing"
        if model is None:
            raise CellError(f"model is needed; published here: {there}")
        raise NotPublished(f"The model {model!r} is not published. Published here: {there}.")

    def _known(self, model: str | None) -> str | None:
        entries = self.view().entries
        if model is None:
            return next(iter(entries)) if len(entries) == 1 else None
        return next((name for name in (model, f"/sax/{self._cell}/{model}") if name in entries), None)

    async def call(self, request: Request, model: str, method: str, path: str, body: bytes) -> Response:
        """The model's answer. Raises NotAllowed, or Unavailable while no replica is loaded."""
        view = self.view()
        if view.entries[model]["active_replicas"] == 0:
            await self._front.look()  # it may have been loaded a moment ago, or unpublished
            view = self.view()
            if model not in view.entries:
                raise NotPublished(f"{model} is not published any more")
        entry = view.entries[model]
        principal = principal_of(request)
        if not acl.allows(entry["acls"].get(method, ""), principal):
            raise NotAllowed(f"{principal} may not call {method} of {model}")
        if entry["active_replicas"] == 0:
            why = f": {entry['reason']}" if entry["reason"] else ""
            raise Unavailable(f"{model} is {entry['state'].lower().replace('_', ' ')}{why}", retry_after_s=5)
        return await self._relay.send(view.routes[model], path, request.headers, body, view.relay_key)

    def view(self) -> Any:
        if self._front.view is None:
            raise Unavailable("the cell is starting; try again", retry_after_s=2)
        return self._front.view


def principal_of(request: Request) -> str | None:
    """The name of the caller's key; None where the service has no keys."""
    return request.scope.get("podslice.principal")


def http_app(cell: str, front: Front, relay: Relay, keys: Mapping[bytes, str]) -> FastAPI:
    """An ASGI application; with keys (digest -> principal), only for those who hold one."""
    from apps.cell.openai import openai_router
    from apps.cell.saxml import saxml_router

    caller = Caller(cell, front, relay)
    app = FastAPI(title="Podslice cell", description="Models published at run time on Cloud TPU slices.")
    app.include_router(saxml_router(cell, front, caller), tags=["Saxml"])
    app.include_router(openai_router(caller), tags=["OpenAI"])

    @app.get("/health", tags=["Server"])
    @app.get("/healthz", include_in_schema=False)
    @app.get("/healthcheck", include_in_schema=False)
    async def health() -> Response:
        """Whether the cell answers, and what is published."""
        view = front.view
        models = {} if view is None else {name: entry["state"] for name, entry in view.entries.items()}
        if view is None:
            return JSONResponse({"status": "starting", "models": models}, 503)
        return JSONResponse({"status": "ok", "models": models})

    @app.exception_handler(CellError)
    async def refused(request: Request, error: CellError) -> Response:
        """In both of Saxml's generations, or as OpenAI's clients expect it."""
        if "/v1/" in request.url.path:
            code = "model_not_found" if isinstance(error, NotPublished) else None
            return OpenAIError(error.status, str(error), None, code, error.retry_after_s).response()
        from apps.cell.saxml import failure

        return failure(error)

    @app.exception_handler(OpenAIError)
    async def openai_refused(request: Request, error: OpenAIError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        # Saxml's HTTP server says just this, with 400; a status of its own helps more.
        sentence = unknown_path(request, error)
        content = {"message": "Invalid Request", "Error": sentence, "detail": sentence}
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        sentence = "The server failed; its log says why."
        return JSONResponse({"Error": sentence, "detail": sentence}, 500)

    if keys:
        app.add_middleware(
            RequireKey,
            principals=keys,
            refused=lambda message: JSONResponse({"Error": message, "detail": message}, 401),
        )
    return app
