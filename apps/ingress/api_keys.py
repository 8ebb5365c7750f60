"""Optional API keys: `Authorization: Bearer KEY`, as OpenAI's clients send it."""

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

OPEN_PATHS = frozenset({"/", "/health", "/healthz", "/healthcheck"})
"""What probes ask: open to all, as it tells nothing and costs nothing."""

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


def digest(key: str) -> bytes:
    """What is kept of a key: enough to know it again, not to send it."""
    return hashlib.sha256(key.encode()).digest()


def keys_from_environment() -> frozenset[bytes]:
    """Digests of the comma-separated keys in PODSLICE_API_KEYS."""
    keys = os.environ.get("PODSLICE_API_KEYS", "").split(",")
    return frozenset(digest(key.strip()) for key in keys if key.strip())


class RequireKey:
    """ASGI middleware: a request without a known key gets `refused(message)`, and the application never sees it."""

    def __init__(self, app: Asgi, digests: frozenset[bytes], refused: Callable[[str], Response]):
        self._app, self._digests, self._refused = app, digests, refused

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN_PATHS:
            header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if problem := self._problem(header.decode("latin-1")):
                await self._refused(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, header: str) -> str | None:
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key:
            return "No API key given: send it in the header 'Authorization: Bearer KEY'."
        return None if self._knows(key.strip()) else "Incorrect API key given."

    def _knows(self, key: str) -> bool:
        """Compares with every key, each in constant time, so that the time taken tells nothing about any of them."""
        offered, known = digest(key), False
        for expected in self._digests:
            known |= hmac.compare_digest(offered, expected)
        return known
