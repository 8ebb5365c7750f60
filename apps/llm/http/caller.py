"""Tells the engine whose a request is, and which session it belongs to, for all dialects."""

from typing import Any

from apps.llm.api import ANYONE, CALLER, SESSION, Caller
from apps.serving.ingress.api_keys import Asgi, principal_of

SESSION_HEADERS = b"x-dynamo-session-id", b"x-smg-routing-key", b"x-session-id"
"""Dynamo's, SGLang's gateway's, and the one that AIPerf and others send; the first that is there counts."""
MOST_CHARACTERS = 256


class NamedCaller:
    """ASGI middleware: sets CALLER and SESSION for each request, inside `RequireKey`."""

    def __init__(self, app: Asgi):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or CALLER.get() is not ANYONE:  # a request from inside the server has set it
            await self._app(scope, receive, send)
            return
        caller, session = CALLER.set(caller_of(scope)), SESSION.set(session_of(scope))
        try:
            await self._app(scope, receive, send)
        finally:
            CALLER.reset(caller)
            SESSION.reset(session)


def caller_of(scope: dict[str, Any]) -> Caller:
    """The caller: the principal of the request's key, or else the IP address."""
    principal = principal_of(scope)
    if principal is not None:
        return Caller(principal)
    client = scope.get("client")
    return Caller(address=client[0] if client else "")


def session_of(scope: dict[str, Any]) -> str:
    """What the request's headers name its session; empty: nothing."""
    headers = dict(scope["headers"])
    named = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), b"")
    return named.decode("latin-1")[:MOST_CHARACTERS]
