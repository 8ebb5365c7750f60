"""The relay of a cell's front, over a real socket to a replica that dies. The oracle: the undisturbed stream, and what
the clients of each dialect read as an error (openai's, anthropic's and saxutil's own parsers)."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from apps.cell.errors import Unavailable
from apps.cell.http.relay import CUT, Relay

EVENTS = [b'data: {"text": "%d"}\n\n' % i for i in range(5)]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_an_answer_in_one_piece_is_whole_or_can_be_tried_again() -> None:
    """The oracle: the Content-Length that the replica promises."""

    async def call(sent: bytes) -> bytes | str:
        async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\nX-A: b\r\n\r\n" + sent
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(replica, "127.0.0.1", 0)
        relay = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            answer = await relay.send("/sax/test/m", "/v1/completions", {}, b"{}", None)
            assert answer.headers["x-a"] == "b" and answer.headers.getlist("content-length") == ["9"]
            return bytes(answer.body)
        except Unavailable as error:
            assert error.retry_after_s
            return str(error)
        finally:
            server.close()
            assert relay._session is not None
            await relay._session.close()

    assert asyncio.run(call(b'{"a": 42}')) == b'{"a": 42}'
    assert asyncio.run(call(b'{"a": ')) == CUT


def relayed(pieces: list[bytes], path: str = "/v1/completions", ends: bool = False) -> bytes:
    """The body that a client gets of an answer in these chunks; the replica then ends it, or dies."""

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n" if ends else b"")
        await writer.drain()
        writer.close()

    async def call() -> bytes:
        server = await asyncio.start_server(replica, "127.0.0.1", 0)
        relay, sent = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), list[Any]()
        answer = await relay.send("/sax/test/m", path, {}, b"{}", None)

        async def send(message: Any) -> None:
            sent.append(message)

        await answer({"type": "http"}, lambda: asyncio.Event().wait(), send)
        server.close()
        assert relay._session is not None
        await relay._session.close()
        assert sent[0]["status"] == 200 and sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        return b"".join(message.get("body", b"") for message in sent)

    return asyncio.run(call())


@pytest.mark.parametrize("cuts", [[], [3], [7, 9], [21, 22], list(range(1, 100, 5))])
def test_a_stream_passes_unchanged_however_it_is_cut_into_pieces(cuts: list[int]) -> None:
    whole = b"".join(EVENTS)
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    assert relayed([piece for piece in pieces if piece], ends=True) == whole


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/completions", lambda event: event["error"]["message"]),
        ("/v1/chat/completions", lambda event: event["error"]["message"]),
        ("/v1/messages", lambda event: event["error"]["message"]),
        ("/v1/responses", lambda event: event["message"]),
        ("/generate", lambda event: event["Error"]),
    ],
)
@pytest.mark.parametrize("half", [b"", b'data: {"text": "ha'])
def test_the_last_event_says_that_the_replica_died(path: str, message: Callable[[Any], str], half: bytes) -> None:
    *events, last = (
        relayed([*EVENTS, *([half] if half else [])], path).removesuffix(b"data: [DONE]\n\n").split(b"\n\n")[:-1]
    )
    assert [event + b"\n\n" for event in events] == EVENTS
    assert message(json.loads(last.rpartition(b"data: ")[2])) == CUT
