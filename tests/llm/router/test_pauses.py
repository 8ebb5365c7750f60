"""How long a reader waited whose engine was gone, in parts, by a clock that the test sets.

The oracle is that clock: each part is what passed between the events that its name says.
"""

from collections.abc import Iterator

import pytest

from apps.llm.api import TokenOutput
from apps.llm.router.fleet import Fleet
from apps.llm.router.journey import Pause
from tests.llm.router.test_storms import SIZES, Ledger, request


class Watch:
    """A clock, and a fleet that goes by it."""

    def __init__(self) -> None:
        self.now, self.pauses, self.read = 100.0, list[Pause](), list[TokenOutput]()
        self.fleet = Fleet(SIZES, clock=lambda: self.now, resumed=self.pauses.append)

    def after(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.fleet.shutdown()


def test_each_part(watch: Watch) -> None:
    dead, next_one = Ledger(), Ledger()
    watch.fleet.join(dead, "dead")
    watch.fleet.submit([request(0, 100)], watch.read.extend)
    watch.after(1)
    dead.sends(0, 7, 8)
    watch.after(2)
    watch.fleet.lost(dead, "its connection has ended")
    watch.after(3)
    watch.fleet.join(next_one, "next")
    (moved,) = next_one.moved
    watch.after(1)
    next_one.sends(moved.id)  # it has left the queue
    watch.after(3)
    next_one.sends(moved.id, 9)
    assert watch.pauses == [Pause(noticed=2, placed=3, computed=4, tokens=102)] and watch.pauses[0].whole == 9
    watch.after(5)
    next_one.sends(moved.id, 10)
    assert len(watch.pauses) == 1, "what follows is no pause"
    assert [token for output in watch.read for token in output.token_ids] == [7, 8, 9, 10]


def test_a_second_death_before_the_next_token_makes_one_longer_pause(watch: Watch) -> None:
    first, second, third = Ledger(), Ledger(), Ledger()
    watch.fleet.join(first, "first")
    watch.fleet.submit([request(0, 100)], watch.read.extend)
    first.sends(0, 7)
    watch.after(1)
    watch.fleet.join(second, "second")
    watch.fleet.lost(first, "has ended")
    watch.after(2)
    watch.fleet.join(third, "third")
    watch.fleet.lost(second, "has ended too")
    watch.after(4)
    third.sends(third.moved[0].id, 8)
    assert watch.pauses == [Pause(noticed=1, placed=2, computed=4, tokens=101)]


def test_a_request_that_had_no_token_yet_counts_from_when_its_engine_got_it(watch: Watch) -> None:
    dead, next_one = Ledger(), Ledger()
    watch.fleet.join(dead, "dead")
    watch.fleet.submit([request(0, 100), request(1, 100)], watch.read.extend)
    watch.after(1)
    watch.fleet.join(next_one, "next")
    watch.fleet.lost(dead, "has ended")
    watch.after(2)
    for id in list(next_one.given):
        next_one.sends(id, 5)
    assert watch.pauses == [Pause(noticed=1, placed=0, computed=2, tokens=100)] * 2


def test_undisturbed_requests_have_none(watch: Watch) -> None:
    engine = Ledger()
    watch.fleet.submit([request(0, 100)], watch.read.extend)  # waits for the first engine
    watch.after(3)
    watch.fleet.join(engine, "first")
    engine.sends(0, 7)
    assert watch.pauses == []
