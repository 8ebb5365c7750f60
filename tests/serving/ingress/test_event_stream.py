"""A streamed answer: what becomes of a failure before and after its first piece, and that what it holds is let go."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from apps.serving.ingress import event_stream
from apps.serving.ingress.event_stream import EventStream

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


async def slow(began: asyncio.Event, *given: bytes | Exception) -> AsyncGenerator[bytes, None]:
    """Pieces of which the first comes when `began` is set, and the second a while later."""
    try:
        await began.wait()
        for piece in given:
            if isinstance(piece, Exception):
                raise piece
            yield piece
            await asyncio.sleep(0.2)
    finally:
        freed.append("freed")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "QUIET_S", 0.05)


def begun_late(stream: Callable[[asyncio.Event], EventStream]) -> list[bytes]:
    """What a client reads of a stream whose first piece comes after its first comments."""
    sent: list[bytes] = []

    async def answer() -> None:
        began = asyncio.Event()

        async def send(message: dict) -> None:
            sent.append(message.get("body", b""))
            if len(sent) == 4:
                began.set()

        await (await stream(began).begun())({}, None, send)

    freed.clear()
    asyncio.run(answer())
    assert freed == ["freed"]
    return sent[1:]


@pytest.mark.usefixtures("impatient")
def test_a_quiet_stream_says_what_it_waits_for():
    """A comment, which the standard of server-sent events has readers skip, and for this purpose."""
    told = iter(f"a replica, {seconds} s so far" for seconds in range(100))
    read = begun_late(lambda began: EventStream(slow(began, b"a", b"b"), awaits=lambda: next(told)))
    assert read[:3] == [f": waiting for a replica, {seconds} s so far\n\n".encode() for seconds in range(3)]
    news = [piece for piece in read if not piece.startswith(b":")]
    assert news == [b"a", b"b", b""]
    assert len(read) > 3 + len(news), "a stream may wait in its middle too"


@pytest.mark.usefixtures("impatient")
def test_what_fails_after_a_comment_is_the_last_piece():
    def lost(began: asyncio.Event) -> EventStream:
        return EventStream(slow(began, ValueError("lost")), lambda error: str(error).encode(), None, lambda: "it")

    assert begun_late(lost)[-2:] == [b"lost", b""]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("media_type", [None, "application/x-ndjson"])
def test_no_comment_without_a_reason_nor_in_another_format(media_type: str | None):
    began = asyncio.Event()

    async def answer() -> None:
        asyncio.get_running_loop().call_later(0.3, began.set)
        await EventStream(slow(began, b"a"), None, media_type, lambda: "it" if media_type else None).begun()

    asyncio.run(answer())
    assert began.is_set()


@pytest.mark.usefixtures("impatient")
def test_a_client_that_leaves_before_the_first_piece_frees_it():
    async def answer(commented: bool) -> None:
        reading = EventStream(slow(asyncio.Event(), b"never"), awaits=lambda: "it" if commented else None)

        async def send(message: dict) -> None: ...

        async def whole() -> None:
            await (await reading.begun())({}, None, send)

        running = asyncio.create_task(whole())
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)

    for commented in (False, True):
        freed.clear()
        asyncio.run(answer(commented))
        assert freed == ["freed"]
