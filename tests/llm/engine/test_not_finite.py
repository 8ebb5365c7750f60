"""Numbers that are not finite stay with the request that made them: it fails, and nobody else notices.

The oracle of every other answer is the same request on an engine that nothing disturbs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from apps.llm.api import AnswerFailed
from apps.llm.engine.adapters import stack
from apps.llm.text import Engine, EngineConfig, SamplingParams
from apps.llm.text.generation import Generation
from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making
from tests.llm.engine.asking import ids, read, settled

BAD_TOKEN = 300
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logit_bias={BAD_TOKEN: -100.0})
PROMPTS = [[5, 6, 7] * n + [8] for n in (1, 6, 9)]
POISONED = [5, 6, 7] * 10 + [BAD_TOKEN, 9] + [6, 7] * 10  # more than three pages
ENGINES = {
    "cpu": {},
    "xla": {"attention": "xla"},
    "int8_cache": {"quantize_kv_cache": "int8"},
    "drafts": {"speculation": "ngram"},
}


QUICK = ("cpu", "drafts")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest, llama: Path, compile_cache: str) -> Iterator[Engine]:
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache, "max_adapters": 2}
    engine = Engine.load(EngineConfig(**settings | ENGINES[request.param]))
    yield engine
    engine.shutdown()


@contextmanager
def poisoned(engine: Engine, bad: float = np.nan) -> Iterator[None]:
    """The model has a token whose embedding is not finite."""
    params = engine.tokens.loops[0].executor.params
    sound = params["embed"]
    table = np.array(sound)  # by NumPy: what JAX computes here would count as compiled by a request
    table[BAD_TOKEN] = bad
    params["embed"] = jax.device_put(table, sound.sharding)
    try:
        yield
    finally:
        params["embed"] = sound


def answers(engine: Engine, *prompts: list[int], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [ids(read(generation)[0]) for generation in [engine.submit(prompt, params) for prompt in prompts]]


def assert_failed(generation: Generation) -> None:
    *_, last = list(generation)
    assert last.finish_reason == "error" and generation.finished
    with pytest.raises(AnswerFailed, match="not finite") as failure:
        last.raise_failure()
    assert failure.value.status == 500


def assert_clean(engine: Engine) -> None:
    """Nothing that is not finite is left on the device, nothing is held, and nothing was compiled."""
    settled(engine)
    executor = engine.tokens.loops[0].executor
    for part in jax.tree.leaves(executor.caches):
        pages = np.asarray(part)[1:]  # without that of padding, which nobody reads
        pages = pages.view(ml_dtypes.bfloat16) if pages.dtype == np.uint16 else pages
        assert np.isfinite(pages.astype(np.float32)).all()
    assert engine.stats().compiles_after_ready == 0
    engine.check()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_request_fails_and_its_neighbours_answer_as_alone(engine: Engine, bad: float) -> None:
    params = SamplingParams(  # without the bad token, which they could sample themselves
        temperature=0.8, seed=3, max_tokens=20, ignore_eos=True, logit_bias={BAD_TOKEN: -100.0}
    )
    alone = answers(engine, *PROMPTS, params=params)
    with poisoned(engine, bad):
        for _ in range(2):  # the second time on recycled pages
            beside = [engine.submit(prompt, params) for prompt in PROMPTS[:2]]
            failing = [engine.submit(POISONED, params) for _ in range(2)]  # the second may take the first one's pages
            beside.append(engine.submit(PROMPTS[2], params))
            for generation in failing:
                assert_failed(generation)
            assert [ids(read(generation)[0]) for generation in beside] == alone
    assert_clean(engine)


def test_its_pages_are_not_in_the_prefix_cache(engine: Engine) -> None:
    (sound,) = answers(engine, POISONED[:30] + [10, 9] + [6, 7] * 10)
    wanted = answers(engine, POISONED, params=GREEDY)  # BAD_TOKEN is like any other here
    pool = engine.tokens.loops[0].stepper.scheduler.pool
    pool.spoil(list(pool._hash_of))
    with poisoned(engine):
        assert_failed(engine.submit(POISONED, GREEDY))
    again = engine.submit(POISONED, GREEDY)
    assert [ids(read(again)[0])] == wanted
    assert again.cached_tokens == 0
    (after,) = answers(engine, POISONED[:30] + [10, 9] + [6, 7] * 10)
    assert after == sound
    assert_clean(engine)


def test_a_shared_prefix_goes_on_for_those_who_are_sound(engine: Engine) -> None:
    prefix = [7, 8, 9] * 12
    wanted = answers(engine, [*prefix, 11], [*prefix, 12])
    with poisoned(engine):
        first = engine.submit([*prefix, 11], GREEDY)
        assert_failed(engine.submit([*prefix, BAD_TOKEN], GREEDY))
        second = engine.submit([*prefix, 12], GREEDY)
        assert [ids(read(first)[0]), ids(read(second)[0])] == wanted
    assert_clean(engine)


def test_a_token_that_is_sampled_into_it(engine: Engine) -> None:
    """The answer begins well; the step after the bad token fails it, once."""
    with poisoned(engine):
        into = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logit_bias={BAD_TOKEN: 100.0})
        generation = engine.submit(PROMPTS[0], into)
        outputs = list(generation)
    assert [output.finish_reason for output in outputs][-1] == "error"
    assert sum(output.finish_reason is not None for output in outputs) == 1
    assert all(token == BAD_TOKEN for token in ids(outputs))
    assert_clean(engine)


def test_one_of_several_answers(engine: Engine) -> None:
    """Only those that took the token fail; the request's other answers have their own end."""
    params = SamplingParams(
        temperature=1.0, seed=5, n=4, max_tokens=12, ignore_eos=True, logit_bias={BAD_TOKEN: 3.0, 20: 8.0}
    )
    with poisoned(engine):
        of_each = read(engine.submit(PROMPTS[0], params))
    for outputs in of_each:
        took = BAD_TOKEN in ids(outputs)[:-1]
        assert outputs[-1].finish_reason == ("error" if took else "length") or ids(outputs)[-1:] == [BAD_TOKEN]
    assert_clean(engine)


def test_scores_and_embeddings(engine: Engine) -> None:
    prefix, suffixes = PROMPTS[1], [[9, 10], [11]]
    unseen = [BAD_TOKEN, *POISONED]  # nothing of it is in the prefix cache from when the token was sound
    wanted = engine.score(prefix, suffixes)
    vector = engine.embed([PROMPTS[2]])
    with poisoned(engine):
        for submit in (
            lambda: engine.submit_score(prefix, [[9, BAD_TOKEN, 10]]),
            lambda: engine.submit_score(unseen, [[9]]),
            lambda: engine.submit_prompt_scores(unseen, GREEDY),
            lambda: engine.submit_embedding(unseen),
            lambda: engine.submit_embedding(unseen, "last"),
        ):
            failing = submit()
            assert engine.score(prefix, suffixes) == wanted
            assert np.array_equal(engine.embed([PROMPTS[2]]), vector)
            assert_failed(failing)
    assert_clean(engine)


def test_an_abandoned_request_leaves_nothing_to_find(engine: Engine) -> None:
    wanted = answers(engine, POISONED)
    pool = engine.tokens.loops[0].stepper.scheduler.pool
    pool.spoil(list(pool._hash_of))
    with poisoned(engine):
        for _ in range(5):
            engine.submit(POISONED, GREEDY).abort()
        settled(engine)
    for _ in range(2):
        assert answers(engine, POISONED) == wanted


@pytest.fixture(scope="module")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapter")
    targets = list(making.ATTENTION + making.MLP)
    making.save_adapter(AutoModelForCausalLM.from_pretrained(llama), folder, r=4, lora_alpha=8, target_modules=targets)
    return folder


@pytest.mark.parametrize("bad", [1e38, np.nan, np.inf])
def test_an_adapter_whose_products_overflow_fails_its_own_requests(engine: Engine, adapter: Path, bad: float) -> None:
    """Written behind the check of its files, to the place beside an ordinary adapter's."""
    engine.load_adapter("good", str(adapter))
    prompts = PROMPTS[:2]
    wanted = answers(engine, *prompts)
    (of_good,) = [ids(read(engine.submit(PROMPTS[0], GREEDY, adapter="good"))[0])]
    engine.load_adapter("bad", str(adapter))
    bad_one, executor = engine.tokens._adapters.get("bad"), engine.tokens.loops[0].executor
    bad_one.key = b"other weights"
    index = bad_one.index
    for layer, form in enumerate(executor.adapter_forms):
        values = stack.unpacked(form, bytes(stack.nbytes(form)))
        for name, low in values.items():
            values[name] = low._replace(a=np.full_like(low.a, bad), b=np.ones_like(low.b))
        executor.write_adapter(index, layer, values)
    failing = engine.submit(PROMPTS[0], GREEDY, adapter="bad")
    good = engine.submit(PROMPTS[0], GREEDY, adapter="good")
    assert answers(engine, *prompts) == wanted
    assert ids(read(good)[0]) == of_good
    assert_failed(failing)
    engine.unload_adapter("bad")
    stacks = jax.tree.leaves([layer["adapters"] for layer in executor.params["layers"]])
    assert stacks and not any(np.asarray(part)[:, index - 1].any() for part in stacks)
    assert ids(read(engine.submit(PROMPTS[0], GREEDY, adapter="good"))[0]) == of_good
    engine.unload_adapter("good")
    assert answers(engine, *prompts) == wanted
    assert_clean(engine)


@pytest.mark.slow
def test_the_kernel_of_a_tpu(load: Callable[..., Engine], interpreted: None) -> None:
    engine = Engine.load(load().config.model_copy(update={"attention": "pallas", "max_batch_size": 4}))
    try:
        alone = answers(engine, *PROMPTS)
        with poisoned(engine):
            failing = engine.submit(POISONED, GREEDY)
            assert answers(engine, *PROMPTS) == alone
            assert_failed(failing)
        assert_clean(engine)
        assert answers(engine, *PROMPTS) == alone
    finally:
        engine.shutdown()
