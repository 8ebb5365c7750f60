"""A streamed answer: what becomes of a failure before and after its first piece, and that what it holds is let go."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from apps.serving.ingress.bodies import EventStream

freed: list[str] = []


async def pieces(*given: bytes | Exception) -> AsyncGenerator[bytes, None]:
    try:
        for piece in given:
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        freed.append("freed")


def answered(stream: EventStream) -> list[bytes]:
    """What a client reads."""
    sent: list[dict] = []

    async def answer() -> None:
        async def send(message: dict) -> None:
            sent.append(message)

        await (await stream.begun())({}, None, send)

    freed.clear()
    asyncio.run(answer())
    assert sent[0]["status"] == 200 and freed == ["freed"]
    return [message["body"] for message in sent[1:]]


def test_pieces_in_their_order():
    assert answered(EventStream(pieces(b"a", b"b"))) == [b"a", b"b", b""]


def test_a_failure_before_the_first_piece_can_have_a_status():
    with pytest.raises(ValueError, match="no room"):
        asyncio.run(EventStream(pieces(ValueError("no room")), lambda error: b"never").begun())
    assert freed[-1] == "freed"


def test_a_later_failure_is_the_last_piece():
    stream = EventStream(pieces(b"a", ValueError("lost")), lambda error: str(error).encode())
    assert answered(stream) == [b"a", b"lost", b""]


def test_without_words_for_it_a_later_failure_breaks_the_connection():
    with pytest.raises(ValueError, match="lost"):
        answered(EventStream(pieces(b"a", ValueError("lost"))))
    assert freed == ["freed"]
