"""Size-limited request bodies, and streamed responses with as little as possible between a token and its socket."""

from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

MAX_BYTES = 32 * 2**20


class Body(BaseModel):
    """A request body: types are strict ("0.5" is not a number), unknown fields are ignored, docstrings are kept."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), use_attribute_docstrings=True)


Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]
"""A client's own texts by name, within OpenAI's limits."""


CacheSalt = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
"""vLLM's salt of the prefix cache: a secret that nobody can guess, such as 256 random bits."""


class BodyTooLarge(ValueError):
    """The body is larger than MAX_BYTES; the message is for the client."""


async def read_body(request: Request) -> bytes:
    """Read the whole body. Raises BodyTooLarge."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise BodyTooLarge(f"The request body is larger than {MAX_BYTES // 2**20} MiB.")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class EventStream(Response):
    """Sends each piece of bytes in one write. Always closes `pieces` at the end, so that they free what they hold.

    Respond with `await EventStream(pieces).begun()`: the status is sent with the first piece, so an error before that
    is raised and can have its own status.

    Args:
        failed: makes the last piece of a stream that fails later; None: the connection is closed mid-stream.

    (Starlette's StreamingResponse runs a task group for each stream to notice disconnects. Serve notices them itself
    and cancels the whole request, including this response.)
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
            return self._failed(error)  # the generator has ended: the next call returns None
