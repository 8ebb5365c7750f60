"""Size-limited request bodies, and streamed responses with as little as possible between a token and its socket."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, core_schema
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BYTES = 32 * 2**20
TOO_LARGE = f"The request body is larger than {MAX_BYTES // 2**20} MiB."
BUSY = "The server is reading too many large requests; try again."
PIECE = 2**20
"""Bytes that are unpacked or parsed at a time, between other requests' work."""


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _takes_whole_floats(schema: CoreSchema) -> CoreSchema:
    """The schema of a model, whose fields of integers take 40.0 as 40. Not those of lists: they may be a million."""
    match schema["type"]:
        case "int":
            return core_schema.no_info_before_validator_function(_whole, schema)
        case "union":
            choices = [each if isinstance(each, tuple) else _takes_whole_floats(each) for each in schema["choices"]]
            return {**schema, "choices": choices}
        case "model-fields":
            fields = {name: _takes_whole_floats(field) for name, field in schema["fields"].items()}
            return {**schema, "fields": fields}
        case "list" | "dict":
            return schema
    inner = None if schema.get("function", {}).get("function") is _whole else schema.get("schema")
    return {**schema, "schema": _takes_whole_floats(inner)} if isinstance(inner, dict) else schema


class Body(BaseModel):
    """A request body: types are strict ("0.5" is not a number, but 40.0 is the integer 40, as it is in JSON), unknown
    fields are ignored, docstrings are kept."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As pydantic's own, but a list is wrong at its first wrong item: an error names one field, and a million
        errors would take seconds."""
        schema = handler(source)
        _fail_fast(schema)
        return _takes_whole_floats(schema)


Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]
"""A client's own texts by name, within OpenAI's limits."""


CacheSalt = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
"""vLLM's salt of the prefix cache: a secret that nobody can guess, such as 256 random bits."""


class BodyTooLarge(ValueError):
    """The body is larger than MAX_BYTES; the message is for the client."""


class BodyRefused(Exception):
    """The body was not read to its end, for another reason than its size; the message is for the client."""

    def __init__(self, status: int, message: str, code: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


class Bodies:
    """The bodies that a process is reading. Each has little time; together they have `most` bytes.

    When they have more, the largest gives way to the others: many large requests that never end cannot keep a small one
    from being read.
    """

    def __init__(self, most: int = 256 * 2**20, grace_s: float = 10, bytes_per_s: float = 16 * 2**10):
        """
        Args:
            grace_s: seconds that any body may be waited for.
            bytes_per_s: at this rate, a body earns more time while it arrives.
        """
        self.most, self.grace_s, self.bytes_per_s = most, grace_s, bytes_per_s
        self.held = 0
        self._open: set[ArrivingBody] = set()

    @contextmanager
    def reading(self) -> Iterator["ArrivingBody"]:
        """One more body, whose bytes are held until the end of the block."""
        reading = ArrivingBody(self)
        self._open.add(reading)
        try:
            yield reading
        finally:
            if reading in self._open:
                self._leave(reading)

    def arrived(self, reading: "ArrivingBody", size: int) -> None:
        """Count bytes, and end the largest body's reading if they are too many."""
        if reading in self._open:
            self.held += size
            if self.held > self.most:
                self._leave(largest := max(self._open, key=lambda reading: reading.size))
                largest.give_way()

    def _leave(self, reading: "ArrivingBody") -> None:
        self._open.discard(reading)
        self.held -= reading.size


class ArrivingBody:
    """A body that is being read: by itself, one that is passed on piece by piece."""

    def __init__(self, bodies: Bodies):
        self.size = 0
        self._bodies = bodies
        self._left_s, self._gave_way = bodies.grace_s, False
        self._limit: asyncio.Timeout | None = None

    def give_way(self) -> None:
        self._gave_way = True
        if self._limit is not None:
            self._limit.reschedule(0)

    async def next(self, receive: Receive) -> tuple[bytes, bool]:
        """The next piece, and whether more follow.

        Raises:
            BodyRefused: it came too slowly, or had to give way.
            ClientDisconnect: the client has left.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(0 if self._gave_way else self._left_s) as self._limit:
                message = await receive()
        except TimeoutError as error:
            if self._gave_way:
                raise BodyRefused(503, BUSY, "overloaded", 2) from error
            slow = f"The request's body came too slowly: {self.size} bytes, and then no more in time."
            raise BodyRefused(408, slow, "request_timeout") from error
        finally:
            self._limit = None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        self.size += len(part)
        self._left_s += began - loop.time() + len(part) / self._bodies.bytes_per_s
        self._bodies.arrived(self, len(part))
        return part, more

    async def whole(self, receive: Receive) -> bytes:
        """The whole body, up to MAX_BYTES. Raises BodyTooLarge, and what `next` raises."""
        parts, size, more = [], 0, True
        while more:
            part, more = await self.next(receive)
            size += len(part)
            if size > MAX_BYTES:
                raise BodyTooLarge(TOO_LARGE)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def unpacked(self, packed: bytes) -> bytes:
        """What a body is that came as gzip, up to MAX_BYTES. Raises BodyTooLarge and BodyRefused."""
        unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        parts, size, left = [], 0, packed
        while left and not unpacking.eof:
            try:
                part = unpacking.decompress(left, PIECE)
            except zlib.error:
                break
            size, left = size + len(part), unpacking.unconsumed_tail
            if size > MAX_BYTES:
                raise BodyTooLarge(TOO_LARGE)
            parts.append(part)
            self.size += len(part)
            self._bodies.arrived(self, len(part))
            if self._gave_way:
                raise BodyRefused(503, BUSY, "overloaded", 2)
            await asyncio.sleep(0)
        if not unpacking.eof or unpacking.unused_data:
            raise BodyRefused(400, "The body is not the gzip that Content-Encoding says it is.", "invalid_encoding")
        return b"".join(parts)


BODIES = Bodies()
"""This process's."""


async def read_body(request: Request) -> bytes:
    """Read the whole body, and unpack gzip. Raises BodyTooLarge, BodyRefused, and ClientDisconnect if the client has
    left."""
    packed = check_encoding(request.headers, ("gzip", "x-gzip"))
    if declared(request.scope) > MAX_BYTES:
        raise BodyTooLarge(TOO_LARGE)
    with BODIES.reading() as reading:
        body = await reading.whole(request.receive)
        return await reading.unpacked(body) if packed else body


async def with_body(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, refused: Callable[[BodyRefused], Response]
) -> None:
    """Pass a request on once its body is here, in one piece. One that is larger than any application keeps is passed on
    as it comes, and so is one without a body."""
    names = {name for name, _ in scope["headers"]}
    if not names & {b"content-length", b"transfer-encoding"} or declared(scope) > MAX_BYTES:
        await app(scope, receive, send)
        return
    try:
        with BODIES.reading() as reading:
            messages: list[Message] = []
            more = True
            while more and reading.size <= MAX_BYTES:
                part, more = await reading.next(receive)
                messages.append({"type": "http.request", "body": part, "more_body": more})
            if len(messages) > 1 and not more:
                whole = b"".join(message["body"] for message in messages)
                messages = [{"type": "http.request", "body": whole, "more_body": False}]
    except BodyRefused as error:
        response = refused(error)
        response.headers["Connection"] = "close"  # the rest of the body is not read
        await response(scope, receive, send)
        return
    except ClientDisconnect:
        return
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    await app(scope, again, send)


async def in_pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    """A body that came in one piece, to be parsed in several, between other requests' work."""
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]
        await asyncio.sleep(0)


def check_encoding(headers: Mapping[str, str], known: tuple[str, ...] = ()) -> bool:
    """Whether a body comes in one of the known encodings. Raises BodyRefused if it comes in another."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return False
    if encoding not in known:
        fix = f"send {' or '.join([*known[:1], 'the body as it is'])}"
        raise BodyRefused(415, f"Content-Encoding {encoding[:40]!r} is not read here: {fix}.", "unsupported_encoding")
    return True


def declared(scope: Mapping[str, Any]) -> int:
    """A request's Content-Length; 0 without one. The HTTP server has checked that it is a number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
