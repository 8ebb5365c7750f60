"""Prefixes that come back from host memory give the answers that computing them gives.

The oracle is an engine of the same config without a prefix cache: copies are of bits, so tokens are the same.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from apps.llm.engine.execute import host_memory, memory
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ids, read

CONFIGS = {
    "bits": {},
    "int8": {"quantize_kv_cache": "int8"},
    "fp8": {"quantize_kv_cache": "fp8"},
    "xla": {"attention": "xla"},
    "drafts": {"speculation": "ngram"},
}
PAGE, PAGES = 16, 14
PROMPTS = [[7 + number, *range(20, 20 + 11 * number)] for number in range(1, 8)]  # 22 pages in all
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=10, ignore_eos=True)


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    return [ids(read(one)[0]) for one in [engine.submit(prompt, SAMPLED) for prompt in prompts]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("bits", "int8"))) for name in CONFIGS]
)
def test_answers_are_those_of_computing(name: str, load: Callable[..., Engine]) -> None:
    sizes = {"page_size": PAGE, "pages": PAGES, "max_batch_size": 2} | CONFIGS[name]
    expected = answers(load(prefix_cache=False, **sizes), PROMPTS)
    engine = load(prefix_cache_host_gib=0.01, **sizes)
    draw = random.Random(0)
    for _ in range(4):
        order = draw.sample(range(len(PROMPTS)), len(PROMPTS))
        found = answers(engine, [PROMPTS[at] for at in order])
        assert found == [expected[at] for at in order]
    stats = engine.stats()
    assert stats.host_hit_tokens > 200 and stats.prefix_hit_tokens >= stats.host_hit_tokens
    assert PAGES < stats.host_pages_used <= stats.host_pages_total
    assert stats.compiles_after_ready == 0 and stats.pages_used == 0


def test_a_full_host_forgets_what_was_used_longest_ago(load: Callable[..., Engine]) -> None:
    sizes = {"page_size": PAGE, "pages": PAGES, "max_batch_size": 2}
    whole = load(prefix_cache_host_gib=0.01, **sizes).stats().host_pages_total
    engine = load(prefix_cache_host_gib=0.01 * 5.5 / whole, **sizes)
    expected = answers(load(prefix_cache=False, **sizes), PROMPTS)
    for _ in range(3):
        assert answers(engine, PROMPTS) == expected
    stats = engine.stats()
    assert stats.host_pages_used == stats.host_pages_total == 5
    (news,) = engine.tokens.cache_news()
    assert len(news.stored) <= PAGES - 1 + 5


def test_it_stays_unused_where_computing_is_quicker(
    llama: Path, compile_cache: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_memory, "seconds_a_page", lambda *given: (0.002, 0.001))
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache}
    with caplog.at_level("INFO", "podslice"):
        engine = Engine.load(EngineConfig(prefix_cache_host_gib=0.01, **settings))
    try:
        assert engine.stats().host_pages_total == 0
        assert engine.tokens.loops[0].executor._host is None
        assert "a page takes 2.00 ms to copy there and back, 1.00 ms to compute: not used" in caplog.text
    finally:
        engine.shutdown()


def test_more_than_the_host_has_is_refused(llama: Path, compile_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_host_memory", lambda instead: 2**30)
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache}
    with pytest.raises(MemoryError, match=r"prefix_cache_host_gib: .* 1.5 GiB of this host, which has 1.0 GiB left"):
        Engine.load(EngineConfig(prefix_cache_host_gib=1.5, **settings))


def test_it_needs_the_prefix_cache() -> None:
    with pytest.raises(ValidationError, match="prefix_cache_host_gib is for the prefix cache"):
        EngineConfig(prefix_cache_host_gib=1, prefix_cache=False)
