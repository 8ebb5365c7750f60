"""Finds a request's model, checks its caller, and relays it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from apps.cell.calls import AnswerT, Call, Entry
from apps.cell.desired import acl
from apps.cell.errors import CellError, NotAllowed, NotPublished, Unavailable
from apps.cell.http.relay import Relay
from apps.cell.names import split
from apps.serving.ingress.api_keys import principal_of


@dataclass(frozen=True)
class View:
    """The front's view of the models."""

    cell: dict[str, Any]
    """The answer of GET /cell, without the models."""
    entries: dict[str, Entry]
    """By full name: the answer of GET /listcell."""
    routes: dict[str, str]
    """Path prefix of each model's own application."""
    relay_key: str | None


class Front(Protocol):
    """The front, as the dialects see it."""

    view: View | None
    """None until the admin has answered once."""

    async def look(self) -> None:
        """Update the view."""

    async def ask(self, call: Call[AnswerT]) -> AnswerT:
        """Call the admin. Raises CellError; Unavailable while the admin starts."""


class Dispatcher:
    """Finds the published model of a request, checks that the caller may use it, and relays the request."""

    def __init__(self, cell: str, front: Front, relay: Relay):
        self._cell, self._front, self._relay = cell, front, relay

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
        """Relay a request; returns the model's answer. Raises NotAllowed, or Unavailable while no replica is loaded."""
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
        refused = bool(split(model)[1]) and entry["state"] == "FAILED"  # an adapter: its model's replicas say why
        if entry["active_replicas"] == 0 and not refused:
            why = f": {entry['reason']}" if entry["reason"] else ""
            raise Unavailable(f"{model} is {entry['state'].lower().replace('_', ' ')}{why}", retry_after_s=5)
        return await self._relay.send(view.routes[model], path, request.headers, body, view.relay_key, principal)

    def view(self) -> View:
        if self._front.view is None:
            raise Unavailable("the cell is starting; try again", retry_after_s=2)
        return self._front.view


def streamed(body: Mapping[str, Any]) -> bool:
    """Whether a request wants a stream, which is a method of its own in ACLs. Raises CellError.

    Only true and false: a model might read another value differently than the check did.
    """
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise CellError(f"stream must be true or false, not {stream!r:.100}")
    return bool(stream)
