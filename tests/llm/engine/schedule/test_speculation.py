"""Speculation: a tiny random Llama's answers are the same with drafts and without, whatever the requests want."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.llm.engine.speculation.choice import TurnTimes
from apps.llm.text import Engine, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ask, ids, read, settled, text
from tests.llm.engine.grammar.test_structured import PERSON
from tests.llm.engine.schedule.test_resume import check_that_it_promises

Load = Callable[..., Engine]
PROMPTS = ["the fox the fox the fox", "x", "days of the week, days of the week, the", "jumps over the " * 4]
FEW = dict.fromkeys(range(40, 46), 30.0)  # so that answers repeat themselves


class Free(TurnTimes):
    """Drafts cost nothing: they are as many as there are rows, however quick this machine is."""

    def turn_s(self, rows: int, reads_first: bool) -> float:
        return 0.5 if reads_first else 1.0


def eager(load: Load, **settings: Any) -> Engine:
    """An engine that drafts whenever it can."""
    engine = load(speculation="ngram", **settings)
    engine.tokens.loops[0].stepper.turn_times = Free({8: 1.0, 32: 1.0})
    return engine


def plain(load: Load, **settings: Any) -> Engine:
    return load(speculation="off", **settings)


def everything(engine: Engine, prompt: str, **params: Any) -> list[list[tuple]]:
    """All that a reader of the request is told."""
    generation = engine.submit(prompt, SamplingParams(**({"max_tokens": 48, "ignore_eos": True} | params)))
    return [
        [
            (out.token_ids, out.text, out.finish_reason, out.stop_reason, [t.token_id for t in out.logprobs])
            for out in answer
        ]
        for answer in read(generation)
    ]


WANTED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logit_bias": FEW},
    "sampled": {"temperature": 1.0, "seed": 6, "logit_bias": FEW},
    "from a narrow choice": {"temperature": 0.9, "seed": 7, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "logit_bias": FEW},
    "several": {"temperature": 0.5, "seed": 3, "n": 3, "logit_bias": FEW},
    "log probabilities": {"temperature": 0, "logprobs": 3, "logit_bias": FEW},
    "a last token": {"temperature": 0, "max_tokens": 13, "logit_bias": FEW},
    "to the end of the context": {"temperature": 0, "max_tokens": None},
    "an end": {"temperature": 1.0, "seed": 1, "logit_bias": FEW | {1: 28.0}, "ignore_eos": False},
    "not before": {"temperature": 1.0, "seed": 1, "logit_bias": FEW | {1: 32.0}, "ignore_eos": False, "min_tokens": 20},
    "stop tokens": {"temperature": 0.8, "seed": 2, "logit_bias": FEW, "stop_token_ids": [44], "min_tokens": 9},
    "penalties": {"temperature": 0.5, "seed": 2, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    "a schema": {"temperature": 0.8, "seed": 4, "json_schema": PERSON, "ignore_eos": False, "max_tokens": 90},
    "a long schema": {
        "temperature": 0,
        "json_schema": {"type": "array", "items": {"enum": ["cat", "dog"]}, "minItems": 6},
        "max_tokens": 80,
    },
}


@pytest.mark.parametrize("name", WANTED)
def test_answers_are_the_same(load: Load, name: str) -> None:
    with_drafts, without = eager(load), plain(load)
    before = with_drafts.stats()
    for prompt in PROMPTS:
        assert everything(with_drafts, prompt, **WANTED[name]) == everything(without, prompt, **WANTED[name])
    after = with_drafts.stats()
    accepted = after.accepted_tokens - before.accepted_tokens
    drafted = after.drafted_tokens - before.drafted_tokens
    assert 0 <= accepted <= drafted
    assert not drafted if name == "penalties" else accepted > 0
    assert after.compiles_after_ready == before.compiles_after_ready
    settled(with_drafts)
    assert without.stats().drafted_tokens == 0


def test_log_probabilities_are_the_same(load: Load) -> None:
    answers = [
        ask(engine, PROMPTS[0], temperature=0, logit_bias=FEW, logprobs=5, ignore_eos=True)
        for engine in (eager(load), plain(load))
    ]
    for mine, other in zip(*answers, strict=True):
        (mine,), (other,) = mine.logprobs, other.logprobs
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [top[2] for top in mine.top] == pytest.approx([top[2] for top in other.top], abs=1e-4)


def test_stop_strings_end_an_answer_within_a_draft(load: Load) -> None:
    engine = eager(load)
    params = {"temperature": 0.3, "seed": 1, "logit_bias": FEW, "ignore_eos": True, "max_tokens": 60}
    whole = text(ask(engine, "x", **params))
    for at in (7, 16, 29):
        stop = whole[at : at + 3]
        answer = ask(engine, "x", stop=[stop], **params)
        assert text(answer) == whole[: whole.index(stop)] and answer[-1].stop_reason == stop
    settled(engine)


COMPANY = {
    "crowd": {},
    "few pages": {"pages": 12, "prefix_cache": False},
    "few pages, reused": {"pages": 12},
    "small pages": {"page_size": 8, "max_step_tokens": 32},
    "int8": {"quantize_weights": "int8", "quantize_kv_cache": "int8"},
    "bfloat16": {"dtype": "bfloat16", "max_batch_size": 32, "max_step_tokens": 32},
    "plain XLA": {"attention": "xla"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPANY)
def test_answers_are_the_same_in_company(load: Load, name: str) -> None:
    """Sequences with drafts beside ones without, preempted ones, prefixes that come from drafted answers."""
    with_drafts, without = eager(load, **COMPANY[name]), plain(load, **COMPANY[name])
    check_that_it_promises(without, name)
    wanted = [WANTED[kind] for kind in ("greedy", "sampled", "penalties", "a long schema", "several")]
    before = with_drafts.stats()
    asked = [(prompt, SamplingParams(**({"max_tokens": 40} | params))) for params in wanted for prompt in PROMPTS]
    expected = [[ids(a) for a in read(without.submit(*one))] for one in asked]
    for _ in range(2):
        open_ = [with_drafts.submit(*one) for one in asked]
        assert [[ids(a) for a in read(generation)] for generation in open_] == expected
    after = with_drafts.stats()
    assert after.accepted_tokens > before.accepted_tokens
    if "few" in name:
        assert after.preemptions > before.preemptions
    assert after.compiles_after_ready == before.compiles_after_ready
    settled(with_drafts)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_windows_that_slide_see_no_wrong_drafts(load: Load, tmp_path: Path, family: str) -> None:
    tiny_models.save(tiny_models.make(family), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    with_drafts, without = eager(load, model=str(tmp_path)), plain(load, model=str(tmp_path))
    for name in ("greedy", "sampled", "to the end of the context"):
        wanted = {"logit_bias": FEW} | WANTED[name]
        for prompt in PROMPTS:
            assert everything(with_drafts, prompt, **wanted) == everything(without, prompt, **wanted)
    stats = with_drafts.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens


def test_what_follows_a_drafted_answer_may_reuse_its_pages(load: Load) -> None:
    engine, without = eager(load), plain(load)
    params = {"temperature": 0.6, "seed": 8, "logit_bias": FEW, "ignore_eos": True}
    before = engine.stats()
    first = engine.tokenizer.encode("x")
    longer = first + ids(ask(engine, first, max_tokens=60, **params))
    assert engine.stats().accepted_tokens > before.accepted_tokens
    for cut in (len(longer), len(longer) - 3, len(longer) - 11):
        again = engine.submit(longer[:cut], SamplingParams(max_tokens=30, **params))
        assert [ids(a) for a in read(again)] == [ids(ask(without, longer[:cut], max_tokens=30, **params))]
        assert again.cached_tokens == (cut - 1) // 16 * 16
    settled(engine)


def test_abort_while_drafts_run(load: Load) -> None:
    engine = eager(load)
    for after in range(1, 12):
        generation = engine.submit("x", SamplingParams(temperature=0, logit_bias=FEW, max_tokens=120, ignore_eos=True))
        outputs = iter(generation)
        for _ in range(after):
            next(outputs)
        generation.abort()
        assert [out.finish_reason for out in outputs][-1] in ("abort", "length")
    settled(engine)


@pytest.mark.slow
def test_the_distribution_is_the_models(load: Load) -> None:
    """Chi-square, at 99.9 %, over pairs of an answer's first tokens, of which the second is drafted, mostly wrongly."""
    engine, few, temperature, count = eager(load), list(FEW), 1.5, 400
    records = [[100, 101, 102, token, few[(i + 1) % len(few)]] for i, token in enumerate(few)]
    prompt = [token for record in records for token in record] + records[0][:3]

    def shares(prefix: list[int]) -> np.ndarray:
        weights = np.exp(np.array(engine.score(prefix, [[token] for token in few]))[:, 0] / temperature)
        return weights / weights.sum()

    first = shares(prompt)
    expected = np.array([first[i] * shares([*prompt, token]) for i, token in enumerate(few)]).ravel() * count
    before, seen = engine.stats(), np.zeros(len(expected))
    only = dict.fromkeys(few, 100.0)
    for seed in range(count):
        params = SamplingParams(temperature=temperature, max_tokens=4, seed=seed, logit_bias=only, ignore_eos=True)
        one, two, *_ = ids(read(engine.submit(prompt, params))[0])
        seen[few.index(one) * len(few) + few.index(two)] += 1
    after = engine.stats()
    assert after.drafted_tokens - before.drafted_tokens > count
    assert after.accepted_tokens - before.accepted_tokens > count / 20
    common = expected >= 5
    bins = [np.append(x[common], x[~common].sum()) for x in (seen, expected)]
    freedom = len(bins[0]) - 1
    assert freedom > 8
    assert float(((bins[0] - bins[1]) ** 2 / bins[1]).sum()) < freedom + 4.4 * np.sqrt(2 * freedom) + 8
