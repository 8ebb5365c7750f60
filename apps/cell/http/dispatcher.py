"""Finds a request's model, checks its caller, and has the model answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.cell.calls import AnswerT, Call, Entry
from apps.cell.desired import acl
from apps.cell.errors import CellError, NotAllowed, NotPublished, Unavailable
from apps.cell.names import split
from apps.serving.ingress.api_keys import principal_of
from ray_configs.llm import LLMConfig

CARRIED = frozenset({"type", "asgi", "http_version", "method", "scheme", "query_string", "client", "server", "headers"})
"""What of a request's scope its model's application gets, besides the project's own."""
REPLACED = frozenset({b"content-length", b"transfer-encoding", b"authorization", b"x-api-key"})


@dataclass(frozen=True)
class View:
    """The front's view of the models."""

    cell: dict[str, Any]
    """The answer of GET /cell, without the models."""
    entries: dict[str, Entry]
    """By full name: the answer of GET /listcell."""
    configs: dict[str, LLMConfig]
    """What each model's engines are started with, by its full name."""


class Front(Protocol):
    """The front, as the dialects see it."""

    view: View | None
    """None until the admin has answered once."""

    async def look(self) -> None:
        """Update the view."""

    async def ask(self, call: Call[AnswerT]) -> AnswerT:
        """Call the admin. Raises CellError; Unavailable while the admin starts."""

    async def app(self, model: str) -> ASGIApp:
        """The application of a published model. Raises Unavailable while there is none."""


class Dispatcher:
    """Finds the published model of a request, checks that the caller may use it, and has it answer."""

    def __init__(self, cell: str, front: Front):
        self._cell, self._front = cell, front

    async def full_name(self, model: str | None) -> str:
        """The full name of `m`, of `/sax/test/m` or, if only one model is published, of None. Raises CellError.

        All of them may name an adapter, as `m:adapter`.
        """
        if (name := self._known(model)) is None:
            await self._front.look()  # it may have been published a moment ago
            name = self._known(model)
        if name is not None:
            return name
        there = ", ".join(self.view().entries) or "nothing"
        if model is None:
            raise CellError(f"model is required; published here: {there}")
        raise NotPublished(f"The model {model!r} is not published. Published here: {there}.")

    def _known(self, model: str | None) -> str | None:
        entries = self.view().entries
        if model is None:
            models = [name for name in entries if not split(name)[1]]
            return models[0] if len(models) == 1 else None
        return next((name for name in (model, f"/sax/{self._cell}/{model}") if name in entries), None)

    async def call(self, request: Request, model: str, method: str, path: str, body: bytes) -> Response:
        """The model's answer. Raises NotAllowed, or Unavailable while no replica is loaded."""
        view = self.view()
        if view.entries[model]["active_replicas"] == 0:
            await self._front.look()  # it may have been loaded a moment ago, or unpublished
            view = self.view()
            if model not in view.entries:
                raise NotPublished(f"{model} is no longer published")
        entry = view.entries[model]
        principal = principal_of(request.scope)
        if not acl.allows(entry["acls"].get(method, ""), principal):
            raise NotAllowed(f"{principal} may not call {method} of {model}")
        if entry["active_replicas"] == 0 and split(model)[1] and entry["state"] == "FAILED":
            raise NotPublished(f"The adapter {model!r} was not loaded: {entry['reason']}")
        if entry["active_replicas"] == 0:
            why = f": {entry['reason']}" if entry["reason"] else ""
            raise Unavailable(f"{model} is {entry['state'].lower().replace('_', ' ')}{why}", retry_after_s=5)
        return Answered(await self._front.app(split(model)[0]), path, body)

    def view(self) -> View:
        if self._front.view is None:
            raise Unavailable("the cell is starting; try again", retry_after_s=2)
        return self._front.view


class Answered(Response):
    """The answer of a model's own application to a request that the front has let in.

    Args:
        app: of the model. It finds the caller's principal in the scope.
        body: the request's, which the front has read.
    """

    def __init__(self, app: ASGIApp, path: str, body: bytes):
        super().__init__()
        self._app, self._path, self._sent = app, path, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread: list[Message] = [{"type": "http.request", "body": self._sent, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        carried = {name: scope[name] for name in scope if name in CARRIED or name.startswith("podslice.")}
        headers = [(name, value) for name, value in scope["headers"] if name not in REPLACED]
        headers.append((b"content-length", b"%d" % len(self._sent)))
        own = {"path": self._path, "raw_path": self._path.encode(), "root_path": "", "headers": headers}
        await self._app(carried | own, again, send)


def streamed(body: Mapping[str, Any]) -> bool:
    """Whether a request wants a stream, which is a method of its own in ACLs. Raises CellError.

    Only true and false: a model might read another value differently than the check did.
    """
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise CellError(f"stream must be true or false, not {stream!r:.100}")
    return bool(stream)
