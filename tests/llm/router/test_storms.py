"""A dead slice's requests fill no survivor's queue: so many tokens at a time, the nearest deadline first."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from apps.llm.api import CacheNews, Capabilities, EngineStats, Sampling, Sink, TokenOutput, TokenRequest
from apps.llm.router.fleet import Fleet
from apps.llm.router.journey import PREFILL_IN_FLIGHT

SIZES = Capabilities(
    vocab_size=320,
    max_model_len=100_000,
    cache_tokens=10**6,
    max_batch_size=64,
    page_size=32,
    embedding_size=8,
    eos_token_ids=(0,),
    special_tokens={},
    adapters=0,
    page_root=b"root",
    resumes_exactly=True,
)


class Ledger:
    """Stands for an engine: it keeps what it is given, and says what it is told to say."""

    def __init__(self) -> None:
        self.capabilities, self.given, self.aborted = SIZES, dict[int, tuple[TokenRequest, Sink]](), list[int]()

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        self.given |= {request.id: (request, sink) for request in requests}
        queued = Future[None]()
        queued.set_result(None)
        return queued

    def abort(self, ids: Sequence[int]) -> None:
        self.aborted += ids

    def cache_news(self, since: Sequence[int] = ()) -> list[CacheNews]:
        return [CacheNews(number=0)]

    def stats(self) -> EngineStats:
        return EngineStats.together([])

    def adapters(self) -> list[Any]:
        return []

    def sends(self, id: int, *tokens: int) -> None:
        _, sink = self.given[id]
        sink([TokenOutput(request=id, token_ids=tokens, entered_ns=1)])

    @property
    def moved(self) -> list[TokenRequest]:
        return [request for request, _ in self.given.values() if request.moved]


def request(id: int, tokens: int, deadline_s: float | None = None) -> TokenRequest:
    return TokenRequest(
        id=id, prompt_ids=(id + 1,) * tokens, limit=50_000, sampling=Sampling(seed=id), deadline_s=deadline_s
    )


@pytest.fixture
def fleet() -> Any:
    fleet = Fleet(SIZES, max_load_share=2.0)
    yield fleet
    fleet.shutdown()


def test_a_survivor_takes_so_much_at_a_time(fleet: Fleet) -> None:
    dead, first, second, read = Ledger(), Ledger(), Ledger(), list[TokenOutput]()
    fleet.join(dead, "dead")
    lengths = [8_000, 20_000, 100, 3_000, 9_000] * 12
    for id, length in enumerate(lengths):
        fleet.submit([request(id, length)], read.extend)
    fleet.join(first, "first")
    fleet.join(second, "second")
    fleet.lost(dead, "was killed")
    answered = set[int]()
    for _ in range(len(lengths)):
        for survivor in (first, second):
            ahead = [each for each in survivor.moved if each.id not in answered]
            tokens = sum(len(each.prompt_ids) for each in ahead)
            assert tokens <= PREFILL_IN_FLIGHT or len(ahead) == 1
        fresh = next(numbers)
        fleet.submit([request(fresh, 500)], read.extend)
        assert fresh in first.given or fresh in second.given, "a new request goes on at once"
        waiting = [
            (survivor, each) for survivor in (first, second) for each in survivor.moved if each.id not in answered
        ]
        assert waiting, "nothing stands still"
        survivor, each = waiting[0]
        answered.add(each.id)
        survivor.sends(each.id, 7)
    assert sorted(output.request for output in read if output.request < 1000) == list(range(len(lengths)))


numbers = itertools.count(1000)


def test_the_nearest_deadline_goes_first(fleet: Fleet) -> None:
    dead, survivor, read = Ledger(), Ledger(), list[TokenOutput]()
    fleet.join(dead, "dead")
    deadlines = [None, 50.0, 20.0, None, 30.0]
    for id, deadline_s in enumerate(deadlines):
        fleet.submit([request(id, 10_000, deadline_s)], read.extend)
    fleet.join(survivor, "survivor")
    fleet.lost(dead, "was killed")
    order = []
    for _ in deadlines:
        each = survivor.moved[-1]
        order.append(each.prompt_ids[0] - 1)
        assert each.deadline_s is None or each.deadline_s <= (deadlines[order[-1]] or 0)
        survivor.sends(each.id, 7)
    assert order == [2, 4, 1, 0, 3]


def test_what_begins_again_is_the_rest(fleet: Fleet) -> None:
    """Prompt, all tokens so far and the seed go along, from engine to engine."""
    engines, read = [Ledger() for _ in range(4)], list[TokenOutput]()
    fleet.join(engines[0], "0")
    fleet.submit([request(3, 40)], read.extend)
    engines[0].sends(3, 11, 12)
    for number, (before, after) in enumerate(itertools.pairwise(engines), 1):
        fleet.join(after, str(number))
        fleet.lost(before, "was killed")
        (again,) = after.moved
        assert again.prompt_ids == (4,) * 40 and again.sampling == Sampling(seed=3) and again.limit == 50_000
        assert list(again.answer_ids) == [token for output in read for token in output.token_ids]
        after.sends(again.id, 20 + number)
        before.sends(next(iter(before.given)), 99)  # what comes too late is not shown
    assert [token for output in read for token in output.token_ids] == [11, 12, 21, 22, 23]
    assert {output.request for output in read} == {3}


def test_a_conversation_goes_where_it_is_cached(fleet: Fleet) -> None:
    engines, read = [Ledger() for _ in range(3)], list[TokenOutput]()
    for number, engine in enumerate(engines):
        fleet.join(engine, str(number))
    fleet.submit([request(1, 3200)], read.extend)
    home = next(engine for engine in engines if engine.given)
    for id in range(2, 6):  # the same prompt, longer each time
        fleet.submit([TokenRequest(id=id, prompt_ids=(2,) * 3200 + (id,) * 64, sampling=Sampling(seed=1))], read.extend)
        assert id in home.given
