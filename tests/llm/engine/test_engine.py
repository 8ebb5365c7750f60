"""The engine as its users see it: a tiny random Llama, real text in and out."""

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.llm.text import Engine, SamplingParams
from apps.llm.text.generation import Generation
from tests.llm.engine.asking import ask, ids, read, settled, text
from tests.llm.serve.serving import wait_until
from tests.processor import HAS_AVX512

Load = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the quick", "fox", "lazy dog; the days of the week, " * 2, "jumps over the " * 4, "é€😀", "x"]


def test_three_lines(load: Load) -> None:
    engine = load()
    answers = engine.generate(["the quick brown", "fox"], SamplingParams(max_tokens=8, temperature=0))
    assert len(answers) == 2 and all(isinstance(answer, str) for answer in answers)


def test_greedy_is_what_transformers_generates(load: Load, llama: Path) -> None:
    engine = load()
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    for prompt in PROMPTS:
        prompt_ids = engine.tokenizer.encode(prompt)
        expected = model.generate(
            torch.tensor([prompt_ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False, eos_token_id=None
        )[0, len(prompt_ids) :].tolist()
        assert ids(read(engine.submit(prompt, GREEDY))[0]) == expected


CONFIGS = {
    "crowd": {},
    "few pages": {"pages": 12, "prefix_cache": False},
    "few pages, reused": {"pages": 12},
    "large steps": {"max_step_tokens": 32},
    "small pages": {"page_size": 8},
    "two at a time": {"max_batch_size": 2},
    "crowd, bfloat16": {"dtype": "bfloat16"},
}


QUICK = ("few pages, reused",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_text_is_the_same_in_any_company(load: Load, name: str) -> None:
    if "bfloat16" in name and not HAS_AVX512:
        pytest.skip("products of bfloat16 round by the number of rows there, and a near tie may fall the other way")
    alone, crowded = load(dtype=CONFIGS[name].get("dtype", "float32")), load(**CONFIGS[name])
    before = crowded.stats()
    warm = SamplingParams(temperature=1.5, top_k=50, top_p=0.95, max_tokens=24, seed=7, ignore_eos=True)
    wanted = [[ids(read(alone.submit(prompt, params))[0]) for prompt in PROMPTS] for params in (GREEDY, warm)]
    for _ in range(2):  # the second round finds the first one's prefixes
        got = [[crowded.submit(prompt, params) for prompt in PROMPTS] for params in (GREEDY, warm)]
        assert [[ids(read(generation)[0]) for generation in row] for row in got] == wanted
    settled(crowded)
    after = crowded.stats()
    if "few" in name:
        assert after.preemptions > before.preemptions
    if "crowd" in name or "reused" in name:
        assert after.prefix_hit_tokens > before.prefix_hit_tokens


def test_cached_prefix_is_reported(load: Load) -> None:
    engine, prompt = load(), "over and over " * 5
    first, second = (engine.submit(prompt, GREEDY) for _ in range(2))
    read(first), read(second)
    again = engine.submit(prompt, GREEDY)
    assert text(read(again)[0]) == text(read(engine.submit(prompt, GREEDY))[0])
    assert again.cached_tokens == (len(again.prompt_ids) - 1) // 16 * 16 > 0


def test_several_answers(load: Load) -> None:
    params = SamplingParams(n=3, temperature=2.0, seed=3, max_tokens=12, ignore_eos=True)
    first, again = (read(load().submit("the", params)) for _ in range(2))
    assert [ids(answer) for answer in first] == [ids(answer) for answer in again]
    assert len({tuple(ids(answer)) for answer in first}) == 3
    alone = ask(load(), "the", temperature=2.0, seed=3, max_tokens=12, ignore_eos=True)
    assert ids(alone) == ids(first[0]), "the first answer is the one that n=1 gives"


def test_without_a_seed_answers_differ(load: Load) -> None:
    assert len({tuple(ids(ask(load(), "the", temperature=2.0))) for _ in range(4)}) == 4


def test_max_tokens(load: Load) -> None:
    answer = ask(load(), "the", max_tokens=5, ignore_eos=True)
    assert len(ids(answer)) == 5 and answer[-1].finish_reason == "length"
    answer = ask(load(), "the", max_tokens=None, ignore_eos=True, temperature=0)
    assert answer[-1].finish_reason == "length"
    assert len(load().tokenizer.encode("the")) + len(ids(answer)) == 128, "as far as the context goes"


def test_eos_and_min_tokens(load: Load) -> None:
    eos = {1: 100.0}  # the bias makes the end near certain
    answer = ask(load(), "the", logit_bias=eos, temperature=0)
    assert ids(answer) == [1] and text(answer) == "" and answer[-1].finish_reason == "stop"
    answer = ask(load(), "the", logit_bias=eos, temperature=0, ignore_eos=True, max_tokens=3)
    assert ids(answer) == [1, 1, 1] and answer[-1].finish_reason == "length"
    answer = ask(load(), "the", logit_bias=eos, temperature=0, min_tokens=4)
    assert len(ids(answer)) == 5 and ids(answer).index(1) == 4


def test_stop_token_ids(load: Load) -> None:
    plain = ids(read(load().submit("fox", GREEDY))[0])
    stop = next(token for token in plain[3:] if token not in plain[:3])
    cut = plain[: plain.index(stop) + 1]
    answer = ask(load(), "fox", temperature=0, stop_token_ids=[stop], ignore_eos=True)
    assert ids(answer) == cut
    assert (answer[-1].finish_reason, answer[-1].stop_reason) == ("stop", stop)
    assert text(answer) == load().tokenizer.decode(cut[:-1])
    longer = ask(load(), "fox", temperature=0, stop_token_ids=[stop], ignore_eos=True, min_tokens=len(cut))
    assert len(ids(longer)) > len(cut), "not before min_tokens"


def test_stop_string_across_tokens(load: Load) -> None:
    engine = load()
    bias = {engine.tokenizer.encode(letter)[1]: 60.0 for letter in "abc"}
    plain = ask(engine, "fox", seed=5, logit_bias=bias, ignore_eos=True, max_tokens=40)
    whole = text(plain)
    assert len(whole) == 40, "one letter a token"
    stop = whole[9:13]
    at = whole.index(stop)
    answer = ask(engine, "fox", seed=5, logit_bias=bias, ignore_eos=True, max_tokens=40, stop=["never", stop])
    assert text(answer) == whole[:at]
    assert (answer[-1].finish_reason, answer[-1].stop_reason) == ("stop", stop)
    kept = ask(
        engine, "fox", seed=5, logit_bias=bias, ignore_eos=True, max_tokens=40, stop=[stop], include_stop_text=True
    )
    assert text(kept) == whole[: at + 4]
    for answer_so_far in range(1, len(answer)):  # nothing is shown that the stop string then takes back
        assert whole[:at].startswith(text(answer[:answer_so_far]))


def test_logprobs(load: Load, llama: Path) -> None:
    answer = ask(load(), "the quick", temperature=0, max_tokens=6, logprobs=5, ignore_eos=True)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    sequence = load().tokenizer.encode("the quick")
    for output in answer:
        with torch.no_grad():
            reference = model(torch.tensor([sequence])).logits[0, -1].log_softmax(-1)
        (entry,) = output.logprobs
        assert entry.token_id == output.token_ids[0]
        assert entry.logprob == pytest.approx(float(reference[entry.token_id]), abs=1e-3)
        assert [token for token, _, _ in entry.top] == reference.topk(5).indices.tolist()
        assert [p for _, _, p in entry.top] == pytest.approx(reference.topk(5).values.tolist(), abs=1e-3)
        sequence += output.token_ids
    assert all(len(output.logprobs[0].top) == 0 for output in ask(load(), "the", max_tokens=2, logprobs=0))


def test_penalties_do_not_hang_on_how_the_prompt_was_cut(load: Load) -> None:
    few = dict.fromkeys(range(10, 22), 50.0)  # of which the penalties then choose
    params = SamplingParams(temperature=0, max_tokens=20, frequency_penalty=1.0, logit_bias=few, ignore_eos=True)
    prompt = [random.Random(0).randrange(2, 320) for _ in range(100)]
    large = read(load(max_step_tokens=32).submit(prompt, params))[0]
    small = read(load().submit(prompt, params))[0]
    assert ids(small) == ids(large)


def test_async_readers(load: Load) -> None:
    engine = load()

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()

        async def one(prompt: str) -> str:
            return "".join([output.text async for output in engine.submit(prompt, GREEDY, loop)])

        return await asyncio.gather(*map(one, PROMPTS))

    assert asyncio.run(main()) == engine.generate(PROMPTS, GREEDY)


@pytest.mark.parametrize("schema", [None, {"type": "integer"}])
def test_nothing_keeps_a_request_that_has_been_read(load: Load, schema: dict[str, str] | None) -> None:
    """Not until the garbage collector comes, either: a prompt may be long."""
    generation = load().submit("What?", SamplingParams(max_tokens=3, json_schema=schema))
    read(generation)
    settled(load())
    kept = weakref.ref(generation)
    gc.disable()
    try:
        del generation
        wait_until(lambda: kept() is None, 10)
    finally:
        gc.enable()


def test_mixed_traffic_compiles_nothing_and_leaves_nothing(load: Load) -> None:
    engine, dice = load(max_waiting=1000), random.Random(0)  # one of its own: nobody else has warmed it up
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    open_: list[Generation] = []
    for _ in range(60):
        length = dice.randint(1, 100)
        params = SamplingParams(
            max_tokens=dice.randint(1, 128 - length - 1),
            min_tokens=dice.choice([0, 0, 1]),
            temperature=dice.choice([0, 0.7, 1.5]),
            top_k=dice.choice([0, 5]),
            top_p=dice.choice([1.0, 0.9]),
            min_p=dice.choice([0.0, 0.1]),
            seed=dice.choice([None, 1]),
            presence_penalty=dice.choice([0, 0.5]),
            repetition_penalty=dice.choice([1.0, 1.2]),
            logit_bias=dice.choice([{}, {3: 5.0}]),
            logprobs=dice.choice([None, 2]),
            n=dice.choice([1, 1, 2]),
            stop=dice.choice([(), ("e", "th")]),
            json_schema=dice.choice([None, None, schema]),
        )
        open_.append(engine.submit([dice.randrange(2, 320) for _ in range(length)], params))
        if dice.random() < 0.3:
            dice.choice(open_).abort()
        if dice.random() < 0.3:
            threading.Event().wait(0.02)
    for generation in open_:
        read(generation)
        assert generation.finished
    settled(engine)
    assert engine.stats().compiles_after_ready == 0
