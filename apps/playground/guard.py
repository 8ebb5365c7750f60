"""What stands before the playground's page: bounds of what is sent to it, and of what it may fetch."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse

MAX_MIB = 32
"""A request's body, and so a picture that is uploaded."""
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)
"""The browser fetches nothing from elsewhere: a picture in an answer, whose address a model may be told to write,
would take what was said in the chat to another server."""

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class _TooLarge(Exception):
    pass


class Guard:
    """ASGI middleware: refuses larger bodies with 413, and gives every answer the policy."""

    def __init__(self, app: Asgi, most_bytes: int = MAX_MIB * 2**20):
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left, begun = self._most, False

        async def bounded() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _TooLarge
            return message

        async def with_policy(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message)["Content-Security-Policy"] = POLICY
            await send(message)

        try:
            length = dict(scope["headers"]).get(b"content-length", b"0")
            if not length.isdigit() or int(length[:20]) > self._most:
                raise _TooLarge
            await self._app(scope, bounded, with_policy)
        except _TooLarge:
            if begun:
                raise
            refusal = PlainTextResponse(f"More than {MAX_MIB} MiB cannot be sent.", 413, {"Connection": "close"})
            await refusal(scope, receive, with_policy)
