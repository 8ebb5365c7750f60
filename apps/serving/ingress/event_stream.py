"""Streamed responses, with as little as possible between a token and its socket."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response

from apps.serving.errors import AnswerFailed, panics_as
from apps.serving.ingress.retries import will_not_be_repeated

QUIET_S = 10.0
"""Seconds without news after which the reader of a stream is told what it waits for."""


class EventStream(Response):
    """Sends each piece of bytes in one write. Always closes `pieces` at the end, so that they free what they hold.

    Respond with `await EventStream(pieces).begun()`: the status is sent with the first piece, so an error before that
    is raised and can have its own status.

    Args:
        failed: makes the last piece of a stream that fails later; None: the connection is closed mid-stream.
        awaits: what the answer waits for, if nobody can give it now. A reader of events is told in comments, so that
            neither the reader nor a proxy takes a quiet connection for a dead one.

    (Starlette's StreamingResponse runs a task group for each stream to notice disconnects. Serve notices them itself
    and cancels the whole request, including this response.)
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        failed: Callable[[Exception], bytes] | None = None,
        media_type: str | None = None,
        awaits: Callable[[], str | None] = lambda: None,
    ):
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._pieces, self._failed, self._awaits = pieces, failed, awaits
        self._early: asyncio.Future[bytes | None] | None = None  # the first piece, if comments come before it
        self._scope: Mapping[str, Any] = {}
        self._sent = 0.0  # the event loop's time
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def begun(self) -> "EventStream":
        first = asyncio.ensure_future(anext(self._pieces, None))
        try:
            while not (await asyncio.wait({first}, timeout=QUIET_S))[0]:
                if comment := self._comment():
                    self._first, self._early = comment, first
                    return self
            self._first = first.result() or b""
        except BaseException:
            first.cancel()
            raise
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._scope = scope
        loop = asyncio.get_running_loop()

        async def comment_on_silence() -> None:
            while True:
                await asyncio.sleep(QUIET_S)
                if loop.time() - self._sent >= QUIET_S and (comment := self._comment()):
                    await send({"type": "http.response.body", "body": comment, "more_body": True})

        commenting = asyncio.create_task(comment_on_silence())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            self._sent = loop.time()
            while (piece := await self._next()) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._sent = loop.time()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            commenting.cancel()
            if self._early is not None:
                self._early.cancel()
                await asyncio.wait({self._early})
            await self._pieces.aclose()

    def _comment(self) -> bytes:
        if self.media_type != EventStream.media_type or not (what := self._awaits()):
            return b""
        return f": waiting for {what}\n\n".encode()

    async def _next(self) -> bytes | None:
        try:
            with panics_as(AnswerFailed):
                if self._early is not None:
                    await asyncio.wait({self._early})
                    early, self._early = self._early, None
                    return early.result()
                return await anext(self._pieces, None)
        except Exception as error:
            if self._failed is None:
                raise
            will_not_be_repeated(self._scope)
            return self._failed(error)  # the generator has ended: the next call returns None
