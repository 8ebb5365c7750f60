"""SPDY/3.1 as far as `kubectl port-forward` speaks it, over a WebSocket: streams that the client opens, and their data.

Frames as in SPDY Protocol, Draft 3.1 (https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/).
"""

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
CANCEL = 5
CONTROL = 1 << 31
# What both ends' compressors of headers have seen before: part of the protocol, section 2.6.10.1.
_WORDS = """options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate
proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(word: str) -> bytes:
    return struct.pack(">I", len(word)) + word.encode()


DICTIONARY = b"".join(_text(word.replace("_", " ")) for word in _WORDS.split()) + _REST.encode()


@dataclass
class Stream:
    """A stream that the client has opened."""

    number: int
    headers: dict[str, str]
    _session: "Session"
    _received: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields data until the client closes its side of the stream."""
        while data := await self._received.get():
            yield data

    async def write(self, data: bytes, end: bool = False) -> None:
        await self._session.send(struct.pack(">II", self.number, (FIN << 24 if end else 0) | len(data)) + data)

    async def reset(self) -> None:
        await self._session.send_control(RST_STREAM, struct.pack(">II", self.number, CANCEL))


class Session:
    """The server's side of a connection.

    Ignores the peer's flow-control windows: kubectl reads whatever it is sent.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], opened: Callable[[Stream], None]):
        self.send, self._opened = send, opened
        self._buffer = b""
        self._streams: dict[int, Stream] = {}
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    async def receive(self, data: bytes) -> None:
        """Takes received bytes, which need not end at a frame boundary."""
        self._buffer += data
        while len(self._buffer) >= 8:
            first, second = struct.unpack(">II", self._buffer[:8])
            length = second & 0xFFFFFF
            if len(self._buffer) < 8 + length:
                return
            body, self._buffer = self._buffer[8 : 8 + length], self._buffer[8 + length :]
            await self._frame(first, second >> 24, body)

    def close(self) -> None:
        """Ends all streams: the connection is closed."""
        for stream in self._streams.values():
            stream._received.put_nowait(b"")

    async def send_control(self, kind: int, body: bytes) -> None:
        await self.send(struct.pack(">II", CONTROL | VERSION << 16 | kind, len(body)) + body)

    async def _frame(self, first: int, flags: int, body: bytes) -> None:
        if not first & CONTROL:
            if stream := self._streams.get(first):
                if body:
                    stream._received.put_nowait(body)
                if flags & FIN:
                    stream._received.put_nowait(b"")
            return
        kind = first & 0xFFFF
        if kind == SYN_STREAM:
            await self._open(struct.unpack(">I", body[:4])[0] & ~CONTROL, flags, body[10:])
        elif kind == RST_STREAM:
            if stream := self._streams.pop(struct.unpack(">I", body[:4])[0], None):
                stream._received.put_nowait(b"")
        elif kind == PING:
            await self.send_control(PING, body)

    async def _open(self, number: int, flags: int, compressed: bytes) -> None:
        headers = self._headers(self._inflate.decompress(compressed))
        stream = self._streams[number] = Stream(number, headers, self)
        if flags & FIN:
            stream._received.put_nowait(b"")
        none = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        await self.send_control(SYN_REPLY, struct.pack(">I", number) + none)
        self._opened(stream)

    @staticmethod
    def _headers(data: bytes) -> dict[str, str]:
        position = 4

        def text() -> str:
            nonlocal position
            (length,) = struct.unpack(">I", data[position : position + 4])
            position += 4 + length
            return data[position - length : position].decode()

        return {text(): text() for _ in range(struct.unpack(">I", data[:4])[0])}
