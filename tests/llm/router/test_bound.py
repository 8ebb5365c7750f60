"""Answers that their engines alone can finish: of engines that cannot continue one that follows a grammar.

The oracle is the undisturbed answer of one engine.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from apps.llm.api import Capabilities
from apps.llm.router.fleet import Fleet
from apps.llm.text import Engine, SamplingParams
from tests.llm.engine.asking import ids, read, settled
from tests.llm.router.mortal import Mortal, in_words

Load = Callable[..., Engine]
PLAIN: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
BOUND: dict[str, dict[str, Any]] = {
    "response_format": {"json_schema": {"type": "string", "minLength": 40}},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
}


class Simple(Mortal):
    """One that continues only what needs no memory."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(self._engine.capabilities, continues_held=False)


@pytest.fixture
def fleet(load: Load) -> Iterator[Fleet]:
    fleet = Fleet(load().capabilities)
    yield fleet
    fleet.shutdown()
    settled(load())


@pytest.mark.parametrize("field", BOUND)
def test_the_death_of_its_engine_ends_an_answer_that_has_begun(load: Load, fleet: Fleet, field: str) -> None:
    mortal = Simple(load().tokens, fleet, after=5)
    fleet.join(mortal, "first")
    generation = in_words(load(), fleet).submit("the fox", SamplingParams(**PLAIN | BOUND[field]))
    last = list(generation)[-1]
    assert mortal.dead
    # At once, and not when another engine has come: there is none.
    assert last.finish_reason == "error" and last.error is not None
    assert last.error.startswith(f"{field}: the engine can't continue an answer")


@pytest.mark.parametrize("field", BOUND)
def test_one_that_has_not_begun_begins_elsewhere(load: Load, fleet: Fleet, field: str) -> None:
    params = SamplingParams(**PLAIN | BOUND[field])
    (whole,) = read(load().submit("the fox", params))
    fleet.join(Simple(load().tokens, fleet, after=0), "first")
    generation = in_words(load(), fleet).submit("the fox", params)
    fleet.join(Simple(load().tokens, fleet), "second")
    assert ids(read(generation)[0]) == ids(whole)


def test_a_plain_one_goes_on(load: Load, fleet: Fleet) -> None:
    (whole,) = read(load().submit("the fox", SamplingParams(**PLAIN)))
    fleet.join(Simple(load().tokens, fleet, after=5), "first")
    generation = in_words(load(), fleet).submit("the fox", SamplingParams(**PLAIN))
    fleet.join(Simple(load().tokens, fleet), "second")
    assert ids(read(generation)[0]) == ids(whole)
    assert fleet.moves == 1


def test_a_drained_engine_finishes_what_it_alone_can(load: Load, fleet: Fleet) -> None:
    bound = SamplingParams(**PLAIN | {"max_tokens": 100} | BOUND["presence_penalty"])
    plain = SamplingParams(**PLAIN | {"max_tokens": 100})
    wanted = [ids(read(load().submit("the fox", params))[0]) for params in (bound, plain)]
    old = Simple(load().tokens, fleet)
    fleet.join(old, "first")
    model = in_words(load(), fleet)
    readers = [iter(model.submit("the fox", params)) for params in (bound, plain)]
    begun = [[next(reader)] for reader in readers]
    fleet.join(Simple(load().tokens, fleet), "second")
    fleet.leave(old)
    assert [ids([*first, *reader]) for first, reader in zip(begun, readers)] == wanted
    assert fleet.moves == 1


def test_the_death_of_a_drained_engine_is_told(load: Load, fleet: Fleet) -> None:
    old = Simple(load().tokens, fleet)
    fleet.join(old, "first")
    reader = iter(in_words(load(), fleet).submit("the fox", SamplingParams(**PLAIN | BOUND["presence_penalty"])))
    next(reader)
    old.silent = True
    fleet.join(Simple(load().tokens, fleet), "second")
    fleet.leave(old)
    fleet.lost(old, "has died")
    last = list(reader)[-1]
    assert last.finish_reason == "error" and "has died" in (last.error or "")
