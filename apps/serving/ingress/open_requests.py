"""The requests that a replica is answering: counted, so that it can finish them and refuse new ones before it stops."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.serving.ingress.dialects.openai_errors import OpenAIError

RETRY_AFTER_S = 5.0
GO_ON = frozenset({"/metrics", "/sdapi/v1/progress", "/sdapi/v1/interrupt"})
"""Paths that answer to the end: a scraper's, and those by which a client watches or stops its open request."""


SCOPE_REQUESTS = "podslice.open_requests"
"""Key of the replica's OpenRequests in an ASGI scope."""


def stopping(scope: Mapping[str, Any]) -> bool:
    """Whether the replica that answers the request of this scope is about to stop: what has no end must end now."""
    requests = scope.get(SCOPE_REQUESTS)
    return requests is not None and requests.refusing


class OpenRequests:
    """A replica's open requests: from the head of each to the last byte of its answer."""

    def __init__(self) -> None:
        self._count = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.refusing = False

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests from now on, and wait until none is open. Returns how many still are after timeout_s."""
        self.refusing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), timeout_s)
        return self._count

    def __enter__(self) -> None:
        self._count += 1
        self._none_open.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none_open.set()


class Draining:
    """ASGI middleware: counts open requests, and refuses new ones with 503 and Retry-After once they are drained."""

    def __init__(self, app: ASGIApp, requests: OpenRequests, refused: Callable[[Scope, OpenAIError], Response]):
        self._app, self._requests, self._refused = app, requests, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._requests.refusing and scope["path"].removeprefix(scope.get("root_path", "")) not in GO_ON:
            message = "The server is stopping: it finishes its open requests and takes no more."
            error = OpenAIError(503, message, None, "server_stopping", RETRY_AFTER_S)
            await self._refused(scope, error)(scope, receive, send)
        else:
            scope[SCOPE_REQUESTS] = self._requests
            with self._requests:
                await self._app(scope, receive, send)
