"""Relays a request to a published model's own application, and streams its answer back.

Uses HTTP through Serve's proxy on this host, not a handle: the proxy picks the replica, refuses requests when all are
full and notices dead replicas, and a streamed token costs a tenth of what it does through Ray's object layer.
"""

import json
import logging
from collections.abc import AsyncIterator, Mapping

import aiohttp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apps.cell.errors import Unavailable
from apps.serving.ingress.api_keys import CALLER_HEADER
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.anthropic_errors import PATHS
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.dialects.saxml_answers import failure

log = logging.getLogger("podslice")

CUT = "The replica ended before its answer was complete; try again."
HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"server", b"date"})
PASSED_ON = frozenset(
    {"accept", "content-type", "idempotency-key", "x-request-id", "traceparent", "tracestate", "user-agent"}
)
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
        if answer.content_type == "text/event-stream":
            return Passed(answer, cut_event(path))
        return await _whole(answer)


async def _whole(answer: aiohttp.ClientResponse) -> Response:
    """An answer in one piece. Raises Unavailable if the replica dies before it is complete."""
    try:
        content = await answer.read()
    except aiohttp.ClientError as error:
        raise Unavailable(CUT, retry_after_s=2) from error
    except BaseException:  # the client has left: closing the connection aborts the request at the model
        answer.close()
        raise
    response = Response(content, answer.status)
    response.raw_headers = [*_passed_headers(answer), (b"content-length", str(len(content)).encode())]
    return response


def _passed_headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    headers = ((name.lower(), value) for name, value in answer.raw_headers)
    return [(name, value) for name, value in headers if name not in HOP_BY_HOP and name != b"content-length"]


def cut_event(path: str) -> bytes:
    """What ends a stream of server-sent events whose replica has died, as clients of the path expect it."""
    error = OpenAIError(503, CUT, None, "engine_stopped")
    if path.startswith(PATHS):
        return anthropic_errors.event(error)
    if path == "/v1/responses":
        fields = {"type": "error", "code": "server_error", "message": CUT, "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + json.dumps(fields).encode() + b"\n\n"
    told = error.event() if path.startswith("/v1/") else f"data: {json.dumps(failure(CUT))}\n\n".encode()
    return told + b"data: [DONE]\n\n"


class Passed(Response):
    """The model's stream of events, relayed as it comes; when the client disconnects, the model's request is aborted.

    Args:
        cut: the last event of a stream that the model's replica leaves unfinished.
    """

    def __init__(self, answer: aiohttp.ClientResponse, cut: bytes):
        super().__init__(status_code=answer.status)
        self._answer, self._cut = answer, cut
        self.raw_headers = _passed_headers(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for piece in whole_events(self._answer):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                whole = True
            except aiohttp.ClientError as error:
                log.warning("a published model's stream was cut: %s", error)
                await send({"type": "http.response.body", "body": self._cut, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if whole:
                self._answer.release()
            else:  # closing the connection early aborts the request at the model
                self._answer.close()


async def whole_events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The stream's bytes as they come, up to the end of an event: what follows half an event could not be read."""
    left = b""
    async for piece in answer.content.iter_any():
        end = piece.rfind(b"\n\n") + 2
        if end == 1:  # none, unless it is split between two pieces
            left += piece
            if left.endswith(b"\n\n"):
                yield left
                left = b""
            continue
        yield left + piece[:end]
        left = piece[end:]
    if left:
        yield left
