"""Relays a request to a published model's own application, and streams its answer back.

Uses HTTP through Serve's proxy on this host, not a handle: the proxy picks the replica, refuses requests when all are
full and notices dead replicas, and a streamed token costs a tenth of what it does through Ray's object layer.
"""

import logging
from collections.abc import Mapping

import aiohttp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apps.cell.errors import Unavailable
from apps.serving.ingress.api_keys import CALLER_HEADER

log = logging.getLogger("podslice")

HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"server", b"date"})
PASSED_ON = frozenset({"accept", "content-type", "x-request-id", "traceparent", "tracestate", "user-agent"})
UNROUTED = "x-podslice-unrouted"
CONNECT_S = 5


class Relay:
    """Sends requests to the models' applications."""

    def __init__(self, base_url: str):
        self._base_url = base_url
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        route: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        relay_key: str | None,
        principal: str | None = None,
    ) -> Response:
        """Send a request for `principal`, whose name the model's application accepts because of the relay key.

        Raises Unavailable if no replica can be reached; any answer of the model is passed on unchanged."""
        if self._session is None:  # it belongs to the event loop that requests run in
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
            )
        sent = {name: value for name, value in headers.items() if name.lower() in PASSED_ON}
        if relay_key is not None:
            sent["Authorization"] = f"Bearer {relay_key}"
            sent[CALLER_HEADER] = principal or ""
        try:
            answer = await self._session.post(f"{self._base_url}{route}{path}", data=body, headers=sent)
        except aiohttp.ClientError as error:
            raise Unavailable(f"the model cannot be reached: {error}", retry_after_s=2) from error
        # Serve's Python proxy has no route to it, or HAProxy.
        if answer.status == 404 and (answer.content_type == "text/plain" or UNROUTED in answer.headers):
            answer.close()
            raise Unavailable("the model is not reachable yet; try again", retry_after_s=1)
        return Passed(answer)


class Passed(Response):
    """The model's answer, relayed chunk by chunk; when the client disconnects, the model's request is aborted."""

    def __init__(self, answer: aiohttp.ClientResponse):
        super().__init__(status_code=answer.status)
        self._answer = answer
        self.raw_headers = [
            (name.lower(), value) for name, value in answer.raw_headers if name.lower() not in HOP_BY_HOP
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in self._answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            whole = True
        finally:
            if whole:
                self._answer.release()
            else:  # closing the connection early aborts the request at the model
                self._answer.close()
