"""A request's body, bounded; an answer's, streamed with as little as possible between a token and its socket."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

MAX_BYTES = 32 * 2**20


class Body(BaseModel):
    """Strict types ("0.5" is no number); unknown fields are ignored; a docstring under a field is its description."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), use_attribute_docstrings=True)


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

    Answer with `await EventStream(pieces).begun()`: the status is sent with the first piece, so that a failure until
    then is raised and can have a status of its own.

    Args:
        failed: the last piece of a stream that fails later; None: the connection is closed in the middle.

    (Starlette's StreamingResponse runs a task group beside each stream to notice a client that leaves. Serve
    notices that itself and cancels the whole request, this response included.)
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        failed: Callable[[Exception], bytes] | None = None,
        media_type: str | None = None,
    ):
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._pieces, self._failed = pieces, failed
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def begun(self) -> "EventStream":
        self._first = await anext(self._pieces)
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            while (piece := await self._next()) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._pieces.aclose()

    async def _next(self) -> bytes | None:
        try:
            return await anext(self._pieces, None)
        except Exception as error:
            if self._failed is None:
                raise
            return self._failed(error)  # the generator has ended: the next time there is nothing
