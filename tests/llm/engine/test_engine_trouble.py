"""What the engine does with requests that it cannot or may no longer serve."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apps.llm.text import Engine, EngineConfig, EngineStopped, PromptTooLong, QueueFull, RequestError, SamplingParams
from tests.llm.engine.asking import ask, ids, read, settled

Load = Callable[..., Engine]


@contextmanager
def held(engine: Engine, running: int = 0) -> Iterator[None]:
    """The device takes its time: while inside no step's tokens can be read, once so many sequences run."""
    gate, read_tokens = threading.Event(), engine.tokens.loops[0].executor.read

    def slow(samples):
        if engine.stats().running >= running:
            gate.wait(240)
        return read_tokens(samples)

    engine.tokens.loops[0].executor.read = slow
    try:
        yield
    finally:
        engine.tokens.loops[0].executor.read = read_tokens
        gate.set()


def test_abort_frees_pages_and_ends_the_stream(load: Load) -> None:
    engine = load()
    generation = engine.submit("the quick", SamplingParams(n=3, max_tokens=100, ignore_eos=True))
    next(iter(generation))
    generation.abort()
    endings = [output.finish_reason for output in generation if output.finish_reason]
    assert endings == ["abort"] * 3
    settled(engine)
    generation.abort()  # after the end: nothing happens
    assert ask(engine, "fox")[-1].finish_reason in ("stop", "length")


def test_abort_of_a_request_that_still_waits(load: Load) -> None:
    engine = load(max_batch_size=2)
    long = SamplingParams(max_tokens=100, ignore_eos=True)
    with held(engine):
        running = [engine.submit("the", long) for _ in range(2)]
        waiting = engine.submit("fox", long)
        assert engine.stats().waiting >= 1
        waiting.abort()
    assert [output.finish_reason for output in waiting] == ["abort"]
    for generation in running:
        generation.abort()
        read(generation)
    settled(engine)


def test_a_prompt_that_can_never_fit(load: Load) -> None:
    with pytest.raises(PromptTooLong, match=r"128 tokens.*model's context holds 128") as caught:
        load().submit([5] * 128)
    assert caught.value.field == "prompt"
    small_cache = load(pages=4)
    with pytest.raises(PromptTooLong, match="KV cache holds 48"):
        small_cache.submit([5] * 48)
    longest = ask(small_cache, [5] * 47, max_tokens=None, ignore_eos=True)
    assert len(ids(longest)) == 1 and longest[-1].finish_reason == "length"
    longest = ask(small_cache, [5], max_tokens=None, ignore_eos=True)
    assert len(ids(longest)) == 47
    settled(small_cache)


BAD = {
    "temperature": -0.1,
    "top_p": -0.1,
    "min_p": 1.5,
    "top_k": -2,
    "presence_penalty": 2.5,
    "frequency_penalty": float("nan"),
    "repetition_penalty": 0.0,
    "n": 0,
    "min_tokens": -1,
    "max_tokens": 0,
    "seed": 2**63,
    "logprobs": 21,
    "logit_bias": {320: 1.0},
    "stop_token_ids": [-1],
    "stop": [""],
}


@pytest.mark.parametrize("field", BAD)
def test_a_value_out_of_range(load: Load, field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        load().submit("the", SamplingParams(**{field: BAD[field]}))
    assert caught.value.field == field


def test_other_requests_that_are_refused(load: Load) -> None:
    def refused(prompt: str | list, **params) -> str:
        with pytest.raises(RequestError) as caught:
            load().submit(prompt, SamplingParams(**params))
        return caught.value.field

    assert refused([]) == "prompt"
    assert refused([320]) == "prompt"
    assert refused([-1]) == "prompt"
    assert refused("the", max_tokens=128) == "max_tokens"
    assert refused("the", max_tokens=3, min_tokens=4) == "min_tokens"
    assert refused("the", logit_bias={3: 101.0}) == "logit_bias"
    assert refused("the", stop="END") == "stop", "one string would be taken for its letters"
    assert refused("the", json_schema="{") == "response_format"
    assert refused("the", json_schema={"type": "no such type"}) == "response_format"
    settled(load())


def test_queue_is_bounded(load: Load) -> None:
    engine = load(max_batch_size=2, max_waiting=3)
    with held(engine, running=2):  # the first may take some steps before the second is seen
        running = [engine.submit("the", SamplingParams(max_tokens=100, ignore_eos=True)) for _ in range(2)]
        while engine.stats().running < 2:
            time.sleep(0.01)
        waiting = [engine.submit("the", SamplingParams(max_tokens=4)) for _ in range(3)]
        with pytest.raises(QueueFull, match="max_waiting 3") as caught:
            engine.submit("the")
        assert caught.value.retry_after_s > 0
        assert engine.stats().waiting == 3
    for generation in running + waiting:
        read(generation)
    settled(engine)
    assert len(engine.generate(["the"] * 12, SamplingParams(max_tokens=2))) == 12, "generate waits for room"


def test_a_prompt_that_ends_within_a_character(load: Load) -> None:
    """Any ids are allowed as a prompt, and a random model answers with any bytes: the text must not break."""
    engine = load()
    euro = engine.tokenizer.encode("€")[1:]
    assert len(euro) == 3
    whole = ask(engine, [*engine.tokenizer.encode("a"), *euro[:2]], logit_bias={euro[2]: 100.0}, temperature=0)
    assert ids(whole)[:1] == euro[2:]
    high = {token: 40.0 for byte in "é€😀" for token in engine.tokenizer.encode(byte)[1:]}
    prompts = [engine.tokenizer.encode("x€😀é")[: 2 + cut] for cut in range(9)]
    for generation in [
        engine.submit(prompt, SamplingParams(n=4, max_tokens=60, logit_bias=high, ignore_eos=True, stop=["xyz"]))
        for prompt in prompts
    ]:
        read(generation)


def test_a_reader_whose_event_loop_is_gone(load: Load) -> None:
    engine = load()

    async def leave() -> None:
        engine.submit("the", SamplingParams(max_tokens=100, ignore_eos=True), asyncio.get_running_loop())

    asyncio.run(leave())
    settled(engine)


def test_shutdown_fails_what_is_open(llama: Path, compile_cache: str, load: Load) -> None:
    engine = Engine.load(load().config)
    generation = engine.submit("the", SamplingParams(max_tokens=120, n=2, ignore_eos=True))
    engine.shutdown()
    endings = [output for answer in read(generation) for output in answer[-1:]]
    assert {output.finish_reason for output in endings} <= {"error", "length"}
    assert all("shut down" in output.error for output in endings if output.finish_reason == "error")
    with pytest.raises(EngineStopped, match="shut"):
        engine.submit("the")
    with pytest.raises(EngineStopped):
        engine.check()


@pytest.mark.parametrize("method", ["launch", "read"])
def test_a_failing_step_fails_every_request_with_its_reason(load: Load, method: str) -> None:
    engine = Engine.load(load().config)
    engine.check()
    submitted = threading.Event()

    def broken(*_: object) -> None:
        submitted.wait(240)
        raise RuntimeError("the device fell over")

    setattr(engine.tokens.loops[0].executor, method, broken)
    open_ = [engine.submit("the", SamplingParams(max_tokens=120, ignore_eos=True)) for _ in range(12)]
    submitted.set()
    for generation in open_:
        ending = read(generation)[0][-1]
        assert ending.finish_reason == "error" and "the device fell over" in ending.error
    with pytest.raises(EngineStopped, match="fell over"):
        engine.submit("the")
    with pytest.raises(EngineStopped, match="fell over"):
        engine.check()
    with pytest.raises(EngineStopped, match="fell over"):
        engine.generate(["the"])
    assert not engine.busy, "a replica that waits for what is open would keep its slice from the next one"


def test_check_sees_a_stuck_step(load: Load) -> None:
    engine = load()
    with held(engine):
        generation = engine.submit("the", SamplingParams(max_tokens=2))
        while engine.stats().step_running_s < 0.2:
            threading.Event().wait(0.01)
        engine.check()
        with pytest.raises(EngineStopped, match="in one step"):
            engine.check(step_deadline_s=0.1)
    read(generation)
    engine.check()


def test_context_beyond_the_model(load: Load) -> None:
    with pytest.raises(ValueError, match="max_model_len is 1000, but this model's context is 512"):
        Engine.load(EngineConfig(**load().config.model_dump() | {"max_model_len": 1000}))


def test_event_loops_that_close_leave_nothing_open(load: Load) -> None:
    """What was in progress counts no more as its caller's, wherever it was when its reader's loop closed."""
    engine = load()

    async def begin(wait_s: float) -> None:
        engine.submit("the", SamplingParams(max_tokens=60, ignore_eos=True), asyncio.get_running_loop())
        await asyncio.sleep(wait_s)

    for wait_s in (0, 0.005, 0.01, 0.02, 0.04):
        asyncio.run(begin(wait_s))
    settled(engine)
    assert ids(ask(engine, "the", temperature=0.0))
    counted = engine.callers()["anonymous"]
    assert (counted.requests, counted.waiting) == (0, 0)
