"""How long and how much of bodies is read. The right values: pieces and sums that the test has chosen."""

import asyncio
from collections.abc import Iterable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from apps.serving.ingress.bodies import MAX_BYTES, ArrivingBody, Bodies, BodyRefused, BodyTooLarge


class Client:
    """Sends these pieces, and then nothing more; None: it leaves."""

    def __init__(self, pieces: Iterable[bytes | None], ends: bool = False, every_s: float = 0):
        self._pieces, self._ends, self._every_s = list(pieces), ends, every_s
        self._sent = 0

    async def __call__(self) -> Message:
        await asyncio.sleep(self._every_s)
        if self._sent == len(self._pieces):
            await asyncio.Event().wait()
        self._sent += 1
        if (piece := self._pieces[self._sent - 1]) is None:
            return {"type": "http.disconnect"}
        more = not (self._ends and self._sent == len(self._pieces))
        return {"type": "http.request", "body": piece, "more_body": more}


async def read(bodies: Bodies, client: Client) -> bytes:
    with bodies.reading() as reading:
        return await reading.whole(client)


def test_a_body_is_its_pieces() -> None:
    bodies = Bodies()
    assert asyncio.run(read(bodies, Client([b"ab", b"", b"c"], ends=True))) == b"abc"
    assert asyncio.run(read(bodies, Client([b""], ends=True))) == b"" and bodies.held == 0


def test_half_a_body_is_refused_in_time_and_a_client_that_leaves_frees_it() -> None:
    bodies = Bodies(grace_s=0.2)
    with pytest.raises(BodyRefused) as refused:
        asyncio.run(read(bodies, Client([b"half"])))
    assert refused.value.status == 408 and bodies.held == 0
    with pytest.raises(ClientDisconnect):
        asyncio.run(read(bodies, Client([b"half", None])))
    assert bodies.held == 0


def test_drops_are_too_slow_and_a_rate_is_fast_enough() -> None:
    """Both send a piece each 50 ms, for longer than the grace of 200 ms."""
    bodies = Bodies(grace_s=0.2, bytes_per_s=1000)
    with pytest.raises(BodyRefused):
        asyncio.run(read(bodies, Client([b"."] * 100, ends=True, every_s=0.05)))
    assert len(asyncio.run(read(bodies, Client([b"." * 1000] * 20, ends=True, every_s=0.05)))) == 20_000


def test_time_that_a_reader_takes_is_not_the_clients() -> None:
    async def slowly() -> None:
        reading, client = ArrivingBody(Bodies(grace_s=0.5)), Client([b"a", b"b", b"c"], ends=True)
        for _ in range(3):
            await reading.next(client)
            await asyncio.sleep(0.4)

    asyncio.run(slowly())


def test_more_than_the_most_is_too_large() -> None:
    with pytest.raises(BodyTooLarge):
        asyncio.run(read(Bodies(), Client([b"x" * 2**20] * (MAX_BYTES // 2**20 + 1))))


def test_many_large_bodies_that_wait_give_way_to_others() -> None:
    """Forty requests that send 31 of 32 parts and wait: what is held has a bound, and small ones are read."""
    bodies = Bodies(most=256_000, grace_s=60)
    most = 0

    async def attacked() -> list[BaseException | bytes]:
        nonlocal most
        large = [asyncio.create_task(read(bodies, Client([b"x" * 1000] * 31))) for _ in range(40)]
        small = []
        for _ in range(50):
            small.append(await read(bodies, Client([b"small"] * 3, ends=True)))
            most = max(most, bodies.held)
        assert small == [b"smallsmallsmall"] * 50
        for task in large:
            task.cancel()
        return await asyncio.gather(*large, return_exceptions=True)

    ends = asyncio.run(attacked())
    refused = [end for end in ends if isinstance(end, BodyRefused)]
    assert most <= 256_000 and bodies.held == 0
    assert len(refused) >= 40 - 256 // 31 - 1 and {end.status for end in refused} == {503}
    assert all(end.retry_after_s for end in refused)


def test_the_largest_gives_way_not_the_newest() -> None:
    async def both() -> tuple[BaseException | bytes, ...]:
        bodies = Bodies(most=1000, grace_s=5)
        large = asyncio.create_task(read(bodies, Client([b"x" * 900])))
        await asyncio.sleep(0.05)
        small = await read(bodies, Client([b"x" * 200, b""], ends=True))
        return (*await asyncio.gather(large, return_exceptions=True), small)

    large, small = asyncio.run(both())
    assert isinstance(large, BodyRefused) and large.status == 503 and small == b"x" * 200
