"""A vLLM of this machine as a token engine. The oracles: transformers, in float32, and what vLLM itself answers."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.llm.api import ANYONE, EngineStopped, PromptTooLong, RequestError
from apps.llm.page_names import page_names, page_root
from apps.llm.router.fleet import Fleet
from apps.llm.text import Engine, SamplingParams
from ray_configs.llm import DEMO_MODEL
from tests.llm.engine.asking import ids, read, text
from tests.llm.serve.serving import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

SIZES = {
    "dtype": "float32",
    "max_batch_size": 8,
    "max_model_len": 512,
    "vllm_args": {"enforce_eager": True, "block_size": 32},
}
PROMPTS = [
    "How many days are in a week?",
    "The quick brown fox",
    "1 2 3 4 5 6",
    "é€😀",
    "x",
    "The days of the week are Monday, " * 4,
]
SCHEMA = {
    "type": "object",
    "properties": {"day": {"enum": ["Monday", "Friday"]}, "number": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["day", "number"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine.load(DEMO_MODEL, engine="vllm", **SIZES)
    yield engine
    processes = family(engine)
    engine.shutdown()
    assert len(processes) > 2 and not any(process.is_running() for process in processes)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0, "max_tokens": 24, "ignore_eos": True} | changes))


def settled(engine: Engine) -> None:
    """Nothing is open, here and in vLLM."""
    wait_until(lambda: not engine.busy)
    wait_until(lambda: not engine.tokens._client.samples["vllm:num_requests_running"])  # type: ignore[attr-defined]


def test_greedy_tokens_are_those_of_transformers(engine: Engine, model: Any) -> None:
    generations = [engine.submit(prompt, greedy()) for prompt in PROMPTS]
    for prompt, generation in zip(PROMPTS, generations):
        prompt_ids = engine.prompts.ids("prompt", prompt)
        got = ids(read(generation)[0])
        given = torch.tensor([prompt_ids])
        whole = model.generate(given, max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)[0].tolist()
        assert got == whole[len(prompt_ids) :], prompt


def test_log_probabilities_are_those_of_transformers(engine: Engine, model: Any) -> None:
    (outputs,) = read(engine.submit(PROMPTS[0], greedy(logprobs=3)))
    prompt_ids = engine.prompts.ids("prompt", PROMPTS[0])
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *ids(outputs)]])).logits[0, len(prompt_ids) - 1 : -1]
    wanted = torch.log_softmax(logits, -1).topk(3)
    tops = [point.top for output in outputs for point in output.logprobs]
    assert [[token for token, _, _ in top] for top in tops] == wanted.indices.tolist()
    np.testing.assert_allclose([[value for _, _, value in top] for top in tops], wanted.values.numpy(), atol=2e-4)


def test_scores_are_those_of_transformers(engine: Engine, model: Any) -> None:
    prefix, suffixes = "The days of", [" the week", " a month are"]
    found = engine.score(prefix, suffixes)
    for suffix, scores in zip(suffixes, found):
        before = engine.prompts.ids("prefix", prefix)
        after = engine.prompts.ids("suffix", suffix, special=False)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([[*before, *after]])).logits[0], -1)
        wanted = [float(logprobs[len(before) - 1 + i, token]) for i, token in enumerate(after)]
        np.testing.assert_allclose(scores, wanted, atol=2e-4)


def test_an_answer_ends_at_its_end_token_stop_string_or_stop_token(engine: Engine) -> None:
    (outputs,) = read(engine.submit(PROMPTS[0], greedy(ignore_eos=False, max_tokens=100)))
    assert outputs[-1].finish_reason == "stop" and ids(outputs)[-1] in engine.capabilities.eos_token_ids
    whole = text(outputs)
    assert "seven" in whole
    (outputs,) = read(engine.submit(PROMPTS[0], greedy(stop=("seven",))))
    assert (text(outputs), outputs[-1].stop_reason) == (whole.partition("seven")[0], "seven")
    token = ids(read(engine.submit(PROMPTS[0], greedy()))[0])[3]
    (outputs,) = read(engine.submit(PROMPTS[0], greedy(stop_token_ids=(token,))))
    assert (ids(outputs)[-1], outputs[-1].finish_reason) == (token, "stop")
    settled(engine)


def test_a_seed_is_a_seed_and_several_answers_differ(engine: Engine) -> None:
    warm = {"temperature": 1.5, "seed": 5, "n": 3}
    first, second = ([ids(answer) for answer in read(engine.submit("x", greedy(**warm)))] for _ in range(2))
    assert first == second and len(set(map(tuple, first))) == 3


def test_an_answer_within_a_schema(engine: Engine) -> None:
    for seed in range(4):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=100, json_schema=SCHEMA)
        (outputs,) = read(engine.submit("Name a day.", params))
        assert outputs[-1].finish_reason == "stop", outputs[-1]
        jsonschema.validate(json.loads(text(outputs)), SCHEMA)


def test_a_schema_that_is_none_is_refused_before_the_answer(engine: Engine) -> None:
    with pytest.raises(RequestError) as refused:
        engine.submit("x", SamplingParams(json_schema={"type": "strange"}))
    assert refused.value.field
    with pytest.raises(PromptTooLong):
        engine.submit("x " * 600, greedy())


def test_a_greedy_answer_is_continued_from_every_cut(engine: Engine) -> None:
    (whole,) = read(engine.submit(PROMPTS[1], greedy()))
    for cut in range(1, 23):
        (rest,) = read(engine.submit(PROMPTS[1], greedy(), answer_ids=ids(whole)[:cut]))
        assert ids(rest) == ids(whole)[cut:], cut


@pytest.mark.parametrize("field", ["json_schema", "presence_penalty", "frequency_penalty"])
def test_what_cannot_be_continued_is_refused_by_name(engine: Engine, field: str) -> None:
    changes = {field: SCHEMA if field == "json_schema" else 0.5}
    named = "response_format" if field == "json_schema" else field
    with pytest.raises(RequestError, match=f"{named}: the engine can't continue") as refused:
        engine.submit("x", SamplingParams(max_tokens=24, **changes), answer_ids=[40, 41])
    assert refused.value.field == "answer_ids"


def test_bans_biases_and_what_is_allowed(engine: Engine) -> None:
    (plain,) = read(engine.submit(PROMPTS[0], greedy()))
    first = ids(plain)[0]
    (other,) = read(engine.submit(PROMPTS[0], greedy(logit_bias={first: -100})))
    assert first not in ids(other)
    (few,) = read(engine.submit(PROMPTS[0], greedy(allowed_token_ids=(40, 41))))
    assert set(ids(few)) <= {40, 41}


def test_an_abort_frees_the_request(engine: Engine) -> None:
    generation = engine.submit("x", greedy(max_tokens=400))
    next(iter(generation))
    assert engine.busy and engine.stats().running == 1
    generation.abort()
    settled(engine)
    assert engine.stats().running == engine.stats().waiting == 0


def test_a_deadline_ends_a_request(engine: Engine) -> None:
    made = engine._requests.answers("x", greedy(max_tokens=400), engine._owner(ANYONE, None), ())
    outputs: list[Any] = []
    late = msgspec.structs.replace(made.requests[0], deadline_s=0.05)
    engine.tokens.submit([late], outputs.extend)
    wait_until(lambda: outputs and outputs[-1].finish_reason)
    assert (outputs[-1].finish_reason, outputs[-1].of_answer) == ("error", True)
    assert "deadline" in outputs[-1].error
    settled(engine)


def test_a_prompt_again_is_found_in_the_cache_whose_pages_have_our_names(engine: Engine) -> None:
    prompt = engine.prompts.ids("prompt", "Of mice, men and " * 20)
    size = engine.capabilities.page_size
    assert size == 32
    for cached in (0, len(prompt) // size * size):
        generation = engine.submit(prompt, greedy(max_tokens=2))
        read(generation)
        assert generation.cached_tokens == cached
    wanted = page_names(page_root(engine.capabilities.page_root, salts=("", "")), prompt, size)

    def known() -> set[bytes]:
        return set(engine.tokens.cache_news()[0].stored)

    wait_until(lambda: set(wanted) <= known())
    generation = engine.submit(prompt, greedy(max_tokens=2, cache_salt="mine"))
    read(generation)
    assert generation.cached_tokens == 0
    salted = page_names(page_root(engine.capabilities.page_root, salts=("", "mine")), prompt, size)
    wait_until(lambda: set(salted) <= known())


def test_the_same_model_by_both_engines_makes_no_fleet(engine: Engine) -> None:
    ours = Engine.load(DEMO_MODEL, dtype="float32", max_batch_size=2, max_step_tokens=8, page_size=32)
    fleet = Fleet(engine.capabilities)
    try:
        fleet.join(engine.tokens, "by vLLM")
        with pytest.raises(ValueError, match="ours serves another model, or with other types"):
            fleet.join(ours.tokens, "ours")
        fleet.leave(engine.tokens)
    finally:
        fleet.shutdown()
        ours.shutdown()


def test_counters(engine: Engine) -> None:
    before = engine.stats()
    read(engine.submit(PROMPTS[0], greedy(max_tokens=7)))
    wait_until(lambda: engine.stats().generated_tokens == before.generated_tokens + 7)
    assert engine.stats().prompt_tokens > before.prompt_tokens
    assert engine.stats().pages_total * 32 == engine.capabilities.cache_tokens


def test_a_dead_vllm_is_told_to_readers_and_to_checks() -> None:
    engine = Engine.load(DEMO_MODEL, engine="vllm", **SIZES)
    try:
        engine.check()
        core = next(
            process for process in family(engine) if "EngineCore" in process.name() + "".join(process.cmdline())
        )
        generation = engine.submit("x", greedy(max_tokens=400))
        next(iter(generation))
        os.kill(core.pid, signal.SIGKILL)
        last = list(generation)[-1]
        assert (last.finish_reason, last.of_answer) == ("error", False)
        wait_until(lambda: stopped(engine))
        wait_until(lambda: engine.tokens._process.ended)  # type: ignore[attr-defined]
        with pytest.raises(EngineStopped, match="vLLM"):
            engine.submit("x", greedy())
    finally:
        engine.shutdown()


def family(engine: Engine) -> list[psutil.Process]:
    """Of an engine's vLLM, without its guard."""
    guard = psutil.Process(engine.tokens._process._child._process.pid)  # type: ignore[attr-defined]
    return [each for each in guard.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


def stopped(engine: Engine) -> bool:
    try:
        engine.check()
    except EngineStopped:
        return True
    return False


def test_a_frozen_vllm_is_noticed_by_its_silence() -> None:
    engine = Engine.load(DEMO_MODEL, engine="vllm", **SIZES)
    frozen = family(engine)
    try:
        generation = engine.submit("x", greedy(max_tokens=400))
        next(iter(generation))
        for process in frozen:
            process.suspend()
        wait_until(lambda: engine.stats().step_running_s > 2)
        with pytest.raises(EngineStopped, match=r"sent nothing for \d+ s \(deadline 1 s\)"):
            engine.check(1)
        engine.lose_stuck(1)
        assert list(generation)[-1].finish_reason == "error"
    finally:
        for process in frozen:
            process.resume()
        engine.shutdown()
