"""Identifies each request's caller to the engine, for all dialects."""

from typing import Any

from apps.llm.api import ANYONE, CALLER, Caller
from apps.serving.ingress.api_keys import Asgi, principal_of


class NamedCaller:
    """ASGI middleware: sets CALLER for each request, inside `RequireKey`."""

    def __init__(self, app: Asgi):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or CALLER.get() is not ANYONE:  # a request from inside the server has set it
            await self._app(scope, receive, send)
            return
        before = CALLER.set(caller_of(scope))
        try:
            await self._app(scope, receive, send)
        finally:
            CALLER.reset(before)


def caller_of(scope: dict[str, Any]) -> Caller:
    """The caller: the principal of the request's key, or else the IP address."""
    principal = principal_of(scope)
    if principal is not None:
        return Caller(principal)
    client = scope.get("client")
    return Caller(address=client[0] if client else "")
