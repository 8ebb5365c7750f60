"""A request's body, bounded; an answer's, streamed with as little as possible between a token and its socket."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

MAX_BYTES = 32 * 2**20


class BodyTooLarge(ValueError):
    """The client sends more than MAX_BYTES; its message says so."""


async def read_body(request: Request) -> bytes:
    """All bytes of the body. Raises BodyTooLarge."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise BodyTooLarge(f"The request body is larger than {MAX_BYTES // 2**20} MiB.")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class EventStream(Response):
    """Sends each piece of bytes in one write. Closes `pieces` however it ends, so that they free what they hold.

    (Starlette's StreamingResponse runs a task group beside each stream to notice a client that leaves. Serve
    notices that itself and cancels the whole request, this response included.)
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, pieces: AsyncGenerator[bytes, None], media_type: str | None = None):
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._first, self._pieces = first, pieces
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._pieces.aclose()
