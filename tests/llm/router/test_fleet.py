"""What a fleet's reader gets is what one engine would have sent, whatever happens to the engines.

The oracle is the undisturbed answer of one engine: tokens, text, log probabilities, how it ends.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from apps.llm.api import AnswerFailed, EngineStopped, RequestError, Sampling, TokenOutput, TokenRequest, UnknownAdapter
from apps.llm.router.fleet import Fleet
from apps.llm.router.traffic import MOST_FATAL
from apps.llm.text import Engine, Output, SamplingParams
from tests.llm.engine.asking import ids, read, settled, text
from tests.llm.engine.schedule.test_resume import KINDS, PROMPT, params_of
from tests.llm.router.mortal import Mortal, in_words
from tests.llm.serve.serving import wait_until

Load = Callable[..., Engine]


@pytest.fixture
def fleet(load: Load) -> Iterator[Fleet]:
    fleet = Fleet(load().capabilities)
    yield fleet
    fleet.shutdown()
    settled(load())


def same(outputs: list[Output], expected: list[Output]) -> None:
    assert ids(outputs) == ids(expected)
    assert text(outputs) == text(expected)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (
        expected[-1].finish_reason,
        expected[-1].stop_reason,
    )
    given, right = ([p for out in each for p in out.logprobs] for each in (outputs, expected))
    assert [(p.token_id, p.text, p.offset, p.data) for p in given] == [
        (p.token_id, p.text, p.offset, p.data) for p in right
    ]
    np.testing.assert_allclose([p.logprob for p in given], [p.logprob for p in right], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_at_every_token(load: Load, fleet: Fleet, kind: str) -> None:
    params, model = params_of(kind), in_words(load(), fleet)
    (whole,) = read(load().submit(PROMPT, params))
    for cut in range(len(ids(whole))):
        mortal, survivor = Mortal(load().tokens, fleet, cut), Mortal(load().tokens, fleet)
        fleet.join(mortal, "first")
        generation = model.submit(PROMPT, params)
        fleet.join(survivor, "second")
        same(read(generation)[0], whole)
        assert mortal.dead
        fleet.leave(survivor)


def test_several_answers_at_once(load: Load, fleet: Fleet) -> None:
    """Each goes on by itself, and none is mistaken for another."""
    model, kinds = in_words(load(), fleet), list(KINDS)
    n = {"n": 3, "max_tokens": 20}
    undisturbed = [read(load().submit(PROMPT, SamplingParams(**KINDS[kind] | n))) for kind in kinds]
    for deaths in ((5,), (40, 90), (0, 17, 60, 61, 200)):
        for number, after in enumerate(deaths):
            fleet.join(Mortal(load().tokens, fleet, after), f"mortal {number}")
        begun = [model.submit(PROMPT, SamplingParams(**KINDS[kind] | n), wait=False) for kind in kinds]
        survivor = Mortal(load().tokens, fleet)
        fleet.join(survivor, "survivor")
        for generation, expected in zip(begun, undisturbed, strict=True):
            for answer, right in zip(read(generation), expected, strict=True):
                same(answer, right)
        fleet.leave(survivor)
        for member in fleet._engines:
            fleet.leave(member.engine)


def test_usage_is_counted_once(load: Load, fleet: Fleet) -> None:
    params = SamplingParams(max_tokens=20, seed=3, ignore_eos=True)
    alone = Fleet(load().capabilities)
    alone.join(Mortal(load().tokens, alone), "only")
    undisturbed, model = in_words(load(), alone), in_words(load(), fleet)
    (whole,) = read(undisturbed.submit(PROMPT, params))
    for after in (3, 4, 0):
        fleet.join(Mortal(load().tokens, fleet, after), str(after))
    begun = model.submit(PROMPT, params, wait=False)
    fleet.join(Mortal(load().tokens, fleet), "survivor")
    same(read(begun)[0], whole)
    alone.shutdown()
    assert model.callers() == undisturbed.callers()
    assert begun.cached_tokens <= len(begun.prompt_ids)


def test_scores_and_embeddings_begin_again(load: Load, fleet: Fleet) -> None:
    model, prompt = in_words(load(), fleet), load().tokenizer.encode(PROMPT)
    score = read(load().submit_score(PROMPT, [" one", " two three"]))
    vector = read(load().submit_embedding(PROMPT))[0][0].embedding
    mortal = Mortal(load().tokens, fleet)
    fleet.join(mortal, "first")
    mortal.silent = True
    scored, embedded = model.submit_score(PROMPT, [" one", " two three"]), model.submit_embedding(prompt)
    mortal.die()
    fleet.join(Mortal(load().tokens, fleet), "second")
    for (answer,), (right,) in zip(read(scored), score, strict=True):
        np.testing.assert_allclose([s.logprob for s in answer.scores], [s.logprob for s in right.scores], atol=1e-5)
    np.testing.assert_allclose(read(embedded)[0][0].embedding, vector, atol=1e-5)
    assert fleet.moves == 3


def test_an_engine_that_fails_by_itself(load: Load, fleet: Fleet) -> None:
    """Not told by anybody: its own last outputs say so."""
    failing, params = load(max_waiting=255), params_of("sampled", 100)
    (whole,) = read(load().submit(PROMPT, params))
    fleet.join(failing.tokens, "failing")
    generation = in_words(load(), fleet).submit(PROMPT, params)
    fleet.join(Mortal(load().tokens, fleet), "survivor")
    first = next(iter(generation))
    failing.shutdown()
    assert fleet.members == ["survivor"]
    same([first, *read(generation)[0]], whole)


def test_a_drained_engine_ends_nothing(load: Load, fleet: Fleet) -> None:
    params, drained = params_of("penalties", 100), Mortal(load().tokens, fleet)
    (whole,) = read(load().submit(PROMPT, params))
    fleet.join(drained, "drained")
    generation = in_words(load(), fleet).submit(PROMPT, params)
    fleet.join(Mortal(load().tokens, fleet), "other")
    first = next(iter(generation))
    fleet.leave(drained)
    same([first, *read(generation)[0]], whole)
    assert fleet.moves == 1


def test_a_drained_engine_goes_on_while_there_is_no_other(load: Load, fleet: Fleet) -> None:
    params, drained = params_of("penalties", 100), Mortal(load().tokens, fleet)
    (whole,) = read(load().submit(PROMPT, params))
    for after in ("nothing", "another joins", "it dies"):
        fleet.join(drained, "drained")
        moved, generation = fleet.moves, in_words(load(), fleet).submit(PROMPT, params)
        first = next(iter(generation))
        fleet.leave(drained)
        assert fleet.members == []
        if after != "nothing":
            if after == "it dies":
                drained.die()
            fleet.join(Mortal(load().tokens, fleet), "another")
        same([first, *read(generation)[0]], whole)
        assert fleet.moves == moved + (after != "nothing")
        for member in fleet._engines:
            fleet.leave(member.engine)


def test_what_waits_can_be_given_up(load: Load, fleet: Fleet) -> None:
    """As when a service is changed, and only engines of another model are left: whoever waits is told to come again."""
    mortal, model = Mortal(load().tokens, fleet, 3), in_words(load(), fleet)
    fleet.join(mortal, "mortal")
    generations = [model.submit(PROMPT, params_of("greedy", 20))]
    wait_until(lambda: mortal.dead)
    generations.append(model.submit(PROMPT, params_of("greedy", 20)))
    fleet.give_up("there is none any more")
    for generation in generations:
        (outputs,) = read(generation)
        with pytest.raises(EngineStopped, match="there is none any more"):
            outputs[-1].raise_failure()
    assert not fleet.busy


def test_a_request_that_ends_every_engine_ends(load: Load, fleet: Fleet) -> None:
    for number in range(MOST_FATAL):
        fleet.join(Mortal(load().tokens, fleet, 0), str(number))
    (outputs,) = read(in_words(load(), fleet).submit(PROMPT, params_of("greedy")))
    with pytest.raises(AnswerFailed, match=f"{MOST_FATAL} engines ended with it"):
        outputs[-1].raise_failure()
    assert fleet.members == []


def test_without_an_engine_requests_wait_until_their_deadline(load: Load) -> None:
    now = [0.0]
    fleet, taken = Fleet(load().capabilities, clock=lambda: now[0]), list[TokenOutput]()
    request = TokenRequest(id=1, prompt_ids=(5, 6, 7), limit=9, sampling=Sampling(seed=1), deadline_s=10)
    endless = msgspec.structs.replace(request, id=2, deadline_s=None)
    assert fleet.submit([request], taken.extend).done()
    assert fleet.submit([endless], taken.extend).done()
    assert fleet.stats().waiting == 2 and fleet.busy
    now[0] = 9.9
    fleet._traffic.look()
    assert not taken
    now[0] = 10.1
    wait_until(lambda: bool(taken))
    assert (taken[0].request, taken[0].finish_reason) == (1, "error") and "deadline" in str(taken[0].error)
    fleet.abort([2])
    assert (taken[1].request, taken[1].finish_reason) == (2, "abort")
    assert not fleet.busy
    fleet.shutdown()


def test_what_is_the_requests_own_fault_moves_nothing(load: Load, fleet: Fleet) -> None:
    fleet.join(Mortal(load().tokens, fleet), "only")
    model = in_words(load(), fleet)
    with pytest.raises(RequestError, match="response_format"):
        model.submit(PROMPT, SamplingParams(json_schema={"type": "nothing"}))
    with pytest.raises(UnknownAdapter):
        model.submit(PROMPT, adapter="unknown")
    generation = model.submit(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
    generation.abort()
    assert read(generation)[0][-1].finish_reason == "abort"
    assert (fleet.moves, fleet.members, fleet.busy) == (0, ["only"], False)


def test_a_grammar_that_nobody_waits_for(load: Load, fleet: Fleet) -> None:
    """Cancelled while there is no engine, and while one compiles it."""
    model, params = in_words(load(), fleet), params_of("schema elsewhere")
    assert model.submit(PROMPT, params, wait=False).queued.cancel() and not fleet.busy
    fleet.join(Mortal(load().tokens, fleet), "only")
    generation = model.submit(PROMPT, params, wait=False)
    if generation.queued.cancel():
        wait_until(lambda: not fleet.busy)
    else:
        read(generation)
    assert model.callers()["anonymous"].requests == 0


@pytest.mark.slow
def test_an_adapter_is_in_every_engine(load: Load) -> None:
    first, second = (load(tiny=True, max_adapters=2, max_waiting=number) for number in (100, 101))
    fleet = Fleet(first.capabilities)
    fleet.join(first.tokens, "first")
    fleet.load_adapter("drawn", "nowhere")
    fleet.join(second.tokens, "second")
    assert [adapter.name for adapter in fleet.adapters()] == ["drawn"]
    model, params = in_words(first, fleet), params_of("greedy", 60)
    (whole,) = read(first.submit(PROMPT, params, adapter="drawn"))
    generation = model.submit(PROMPT, params, adapter="drawn")
    started = next(iter(generation))
    fleet.leave(first.tokens)
    same([started, *read(generation)[0]], whole)
    fleet.unload_adapter("drawn")
    assert list(second.tokens.adapters()) == []
    first.tokens.unload_adapter("drawn")
    fleet.shutdown()


def test_another_model_does_not_join(load: Load, fleet: Fleet) -> None:
    other = Mortal(load().tokens, fleet)
    other.capabilities = msgspec.structs.replace(load().capabilities, page_root=b"another model's")
    with pytest.raises(ValueError, match="another model"):
        fleet.join(other, "other")
    assert fleet.members == []
