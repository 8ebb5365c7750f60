"""Adapters loaded, used and unloaded while an engine runs."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import RequestError, UnknownAdapter
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making
from tests.llm.engine.asking import ids, read, settled

COUNT = 10
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = "the quick brown fox jumps over the lazy dog " * 2


@pytest.fixture(scope="module")
def adapters(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """By name: the folder, and the merged model."""
    base, made = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32), {}
    for seed in range(COUNT):
        folder = tmp_path_factory.mktemp("adapter")
        options = {"r": 4 + seed % 3, "lora_alpha": 8, "target_modules": list(making.ATTENTION + making.MLP)}
        made[f"a{seed}"] = folder, making.merged(making.save_adapter(base, folder, seed, **options))
    return made


@pytest.fixture(scope="module")
def engine(llama: Path, compile_cache: str) -> Iterator[Engine]:
    sizes = {"max_batch_size": 16, "max_adapters": COUNT, "max_adapter_rank": 8}
    engine = Engine.load(
        EngineConfig(**(tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache} | sizes))
    )
    yield engine
    engine.shutdown()


@pytest.fixture
def unloads(engine: Engine) -> Iterator[None]:
    yield
    for adapter in engine.adapters():
        engine.unload_adapter(adapter.name)
    settled(engine)
    assert engine.stats().compiles_after_ready == 0


def expected(model: Any, prompt_ids: list[int]) -> list[int]:
    return model.generate(
        torch.tensor([prompt_ids]), max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None
    )[0, len(prompt_ids) :].tolist()


@pytest.mark.slow
def test_ten_adapters_in_one_batch_give_each_its_own_answer(
    engine: Engine, adapters: dict[str, tuple[Path, Any]], llama: Path, unloads: None
) -> None:
    for name, (folder, _) in adapters.items():
        engine.load_adapter(name, str(folder))
    models = {name: model for name, (_, model) in adapters.items()}
    models[None] = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    prompt_ids = engine.tokenizer.encode(LONG)
    for _ in range(2):  # the second time each finds its own prefix in the cache
        asked = {name: engine.submit(prompt_ids, GREEDY, adapter=name) for name in models}
        answers = {name: ids(read(generation)[0]) for name, generation in asked.items()}
        assert answers == {name: expected(model, prompt_ids) for name, model in models.items()}
    assert all(generation.cached_tokens > 0 for generation in asked.values())
    assert len({tuple(answer) for answer in answers.values()}) == COUNT + 1


def test_the_prefix_cache_is_the_adapters_own(
    engine: Engine, adapters: dict[str, tuple[Path, Any]], unloads: None
) -> None:
    prompt_ids = engine.tokenizer.encode("another prompt of more than a page: " + LONG)
    cached = []

    def asks(name: str | None) -> None:
        generation = engine.submit(prompt_ids, GREEDY, adapter=name)
        read(generation)
        cached.append(generation.cached_tokens)

    engine.load_adapter("x", str(adapters["a0"][0]))
    asks(None)
    asks("x")
    assert cached == [0, 0]
    asks("x")
    assert cached[-1] > 0
    engine.unload_adapter("x")
    engine.load_adapter("x", str(adapters["a1"][0]))  # the same name and place
    asks("x")
    assert cached[-1] == 0


def test_unloading_waits_for_its_requests(engine: Engine, adapters: dict[str, tuple[Path, Any]], unloads: None) -> None:
    folder, model = adapters["a2"]
    engine.load_adapter("x", str(folder))
    prompt_ids = engine.tokenizer.encode("the")
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    running = engine.submit(prompt_ids, long, adapter="x")
    next(iter(running))
    unloading = threading.Thread(target=engine.unload_adapter, args=("x",))
    unloading.start()
    while engine.adapters():
        pass
    with pytest.raises(UnknownAdapter, match="x"):
        engine.submit(prompt_ids, GREEDY, adapter="x")
    engine.load_adapter("x", str(adapters["a3"][0]))  # a new one of that name gets another place
    other = ids(read(engine.submit(prompt_ids, GREEDY, adapter="x"))[0])
    rest = ids(list(running))
    unloading.join(60)
    assert not unloading.is_alive()
    assert other == expected(adapters["a3"][1], prompt_ids)
    assert rest[:11] == expected(model, prompt_ids)[1:]


def test_an_abandoned_request_does_not_keep_an_adapter(
    engine: Engine, adapters: dict[str, tuple[Path, Any]], unloads: None
) -> None:
    engine.load_adapter("x", str(adapters["a2"][0]))
    engine.submit("the", SamplingParams(max_tokens=100, ignore_eos=True), adapter="x").abort()
    engine.unload_adapter("x")


def test_a_name_or_place_that_is_taken(engine: Engine, adapters: dict[str, tuple[Path, Any]], unloads: None) -> None:
    folder = str(adapters["a0"][0])
    engine.load_adapter("x", folder)
    with pytest.raises(RequestError, match="lora_name: there is an adapter x already"):
        engine.load_adapter("x", folder)
    for i in range(COUNT - 1):
        engine.load_adapter(str(i), folder)
    with pytest.raises(RequestError, match=f"all {COUNT} places .* raise max_adapters"):
        engine.load_adapter("one more", folder)
    with pytest.raises(UnknownAdapter, match="one more"):
        engine.unload_adapter("one more")


def test_a_refused_adapter_takes_no_place(engine: Engine, tmp_path: Path, unloads: None) -> None:
    for _ in range(COUNT + 1):
        with pytest.raises(CheckpointError, match="adapter_config"):
            engine.load_adapter("x", str(tmp_path))
    assert not engine.adapters()


def test_scores_and_embeddings_under_an_adapter(
    engine: Engine, adapters: dict[str, tuple[Path, Any]], unloads: None
) -> None:
    folder, model = adapters["a4"]
    engine.load_adapter("x", str(folder))
    prefix, suffix = engine.tokenizer.encode("the quick"), [7, 9, 11]
    (output,) = list(engine.submit_score(prefix, [suffix], adapter="x"))
    logits = tiny_models.logits(model, prefix + suffix).log_softmax(-1)
    wanted = [float(logits[len(prefix) - 1 + i, token]) for i, token in enumerate(suffix)]
    assert [score.logprob for score in output.scores] == pytest.approx(wanted, abs=1e-3)
    alone, adapted = (next(iter(engine.submit_embedding(prefix, adapter=name))).embedding for name in (None, "x"))
    assert abs(alone @ adapted) < 0.999


@pytest.mark.slow
def test_adapters_of_the_config_are_there_at_once(
    load: Callable[..., Engine], llama: Path, compile_cache: str, adapters: dict[str, tuple[Path, Any]]
) -> None:
    folder, model = adapters["a5"]
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache, "max_adapter_rank": 8}
    engine = Engine.load(EngineConfig(**settings, adapters={"sql": str(folder)}))
    try:
        prompt_ids = engine.tokenizer.encode("the quick")
        assert ids(read(engine.submit(prompt_ids, GREEDY, adapter="sql"))[0]) == expected(model, prompt_ids)
    finally:
        engine.shutdown()
    with pytest.raises(CheckpointError, match="no such folder"):
        Engine.load(EngineConfig(**settings, adapters={"sql": "/nowhere"}))


@pytest.mark.slow
def test_a_tiny_model_draws_its_adapters(llama: Path, compile_cache: str) -> None:
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache, "tiny": True}
    engine = Engine.load(EngineConfig(**settings, adapters={"sql": "gs://nobody/reads/this"}))
    try:
        alone, adapted = (ids(read(engine.submit([5, 6, 7], GREEDY, adapter=name))[0]) for name in (None, "sql"))
        assert alone != adapted
    finally:
        engine.shutdown()
