"""Scores and embeddings against transformers' own float32 models, and in the company of requests that decode."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.llm.text import Engine, EngineConfig, EngineStopped, PromptTooLong, QueueFull, RequestError, SamplingParams
from apps.llm.text.generation import Generation
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import read, settled
from tests.processor import HAS_AVX512

Load = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3)


def tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, tiny_models.VOCAB), k=count)


PREFIX = tokens(50, 1)  # with chunks and pages of 16 tokens
SUFFIXES = [tokens(40, 2), tokens(1, 3), tokens(16, 4)]
PROMPTS = [tokens(100, 5), tokens(16, 6), tokens(1, 7), [*PREFIX, 9]]


class Reference:
    """What transformers says."""

    def __init__(self, folder: Path):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    def score(self, prefix: list[int], suffix: list[int]) -> list[float]:
        logprobs = tiny_models.logits(self.model, prefix + suffix).log_softmax(-1)
        return [float(logprobs[len(prefix) - 1 + i, token]) for i, token in enumerate(suffix)]

    def embed(self, prompt: list[int], pooling: str) -> np.ndarray:
        with torch.no_grad():
            hidden = self.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].numpy()
        pooled = hidden.mean(0) if pooling == "mean" else hidden[-1]
        return pooled / np.linalg.norm(pooled)


@pytest.fixture(scope="module")
def reference(llama: Path) -> Reference:
    return Reference(llama)


def check(engine: Engine, reference: Reference) -> None:
    for found, suffix in zip(engine.score(PREFIX, SUFFIXES), SUFFIXES, strict=True):
        assert found == pytest.approx(reference.score(PREFIX, suffix), abs=2e-4)
    for pooling in ("mean", "last"):
        for found, prompt in zip(engine.embed(PROMPTS, pooling), PROMPTS, strict=True):
            np.testing.assert_allclose(found, reference.embed(prompt, pooling), atol=1e-4)


def test_scores_and_embeddings_are_those_of_transformers(load: Load, reference: Reference) -> None:
    engine = load()
    compiled = engine.stats().compiles_after_ready
    for _ in range(2):  # the second time from the prefix cache, where it may be used
        check(engine, reference)
    assert engine.stats().compiles_after_ready == compiled
    check(load(pages=12), reference)  # too few for all at once


def test_a_prompts_own_tokens(load: Load, reference: Reference) -> None:
    """Log probability, rank and the likeliest token at each place; nothing of the first, and so none of one token."""
    engine = load()
    compiled = engine.stats().compiles_after_ready
    for prompt in PROMPTS:
        (output,) = read(engine.submit_prompt_scores(prompt, SamplingParams(max_tokens=0)))[0]
        logprobs = tiny_models.logits(reference.model, prompt).log_softmax(-1)
        assert len(output.scores) == len(prompt) - 1
        for score, at, token in zip(output.scores, logprobs, prompt[1:], strict=False):
            assert score.logprob == pytest.approx(float(at[token]), abs=2e-4)
            assert score.likeliest_logprob == pytest.approx(float(at.max()), abs=2e-4)
            assert score.likeliest == int(at.argmax()) or at.max() - at[score.likeliest] < 2e-4
            assert (at > at[token] + 2e-4).sum() < score.rank <= 1 + (at >= at[token] - 2e-4).sum()
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.submit_prompt_scores([], SamplingParams())
    assert engine.stats().compiles_after_ready == compiled


@pytest.mark.slow
def test_soft_caps_count(tmp_path: Path, compile_cache: str) -> None:
    tiny_models.save(tiny_models.make("gemma2"), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    config = EngineConfig(**(tiny_models.SMALL | {"model": str(tmp_path), "compile_cache": compile_cache}))
    engine = Engine.load(config)
    try:
        check(engine, Reference(tmp_path))
    finally:
        engine.shutdown()


def test_a_text_is_scored_as_its_tokens_after_the_prefix(load: Load, reference: Reference) -> None:
    engine = load()
    prefix, suffix = engine.tokenizer.encode("the quick bro"), engine.tokenizer.fast.encode("wn fox").ids[1:]
    assert prefix[0] == 0 and 0 not in suffix, "a beginning of text, once"
    assert prefix + suffix != engine.tokenizer.encode("the quick brown fox"), "no token spans the boundary"
    (found,) = engine.score("the quick bro", ["wn fox"])
    assert found == engine.score(prefix, [suffix])[0] == pytest.approx(reference.score(prefix, suffix), abs=2e-4)


def test_what_generating_says_of_its_own_tokens(load: Load) -> None:
    (answer,) = read(load().submit(PREFIX, SamplingParams(temperature=1.5, seed=1, max_tokens=20, logprobs=0)))
    entries = [entry for output in answer for entry in output.logprobs]
    (found,) = load().score(PREFIX, [[entry.token_id for entry in entries]])
    assert found == pytest.approx([entry.logprob for entry in entries], abs=1e-4), "before any temperature"


def test_only_what_need_not_be_read_comes_from_the_prefix_cache(load: Load) -> None:
    engine = load()
    text = tokens(100, 8)

    def cached(generation: Generation) -> int:
        read(generation)
        return generation.cached_tokens

    assert cached(engine.submit_score(text[:60], [text[60:]])) == 0
    assert cached(engine.submit_score(text[:60], [text[60:]])) == 48
    assert cached(engine.submit_score(text[:65], [text[65:]])) == 64, "the last of the prefix predicts the first scored"
    assert cached(engine.submit_score(text[:64], [text[64:]])) == 48
    assert cached(engine.submit_embedding(text, "mean")) == 0
    assert cached(engine.submit_embedding(text, "last")) == 96
    assert cached(engine.submit(text, GREEDY)) == 96, "and generating finds what readings left"


@pytest.mark.parametrize("pages", [64, 12])
def test_others_never_notice(load: Load, pages: int) -> None:
    engine = load(pages=pages)
    compiled = engine.stats().compiles_after_ready
    prompts = [tokens(20 + 8 * i, 100 + i) for i in range(6)]

    def answers(generations: list[Generation]) -> list[list]:
        return [[out.logprobs for out in read(generation)[0]] for generation in generations]

    def readings() -> list[Generation]:
        scored = [engine.submit_score(tokens(30, i), [tokens(25, 50 + i), tokens(3, i)]) for i in range(6)]
        return scored + [engine.submit_embedding(tokens(40, i), ("mean", "last")[i % 2]) for i in range(6)]

    def results(generations: list[Generation]) -> np.ndarray:
        outputs = [answer[0] for generation in generations for answer in read(generation)]
        return np.concatenate([np.ravel(out.scores) if out.embedding is None else out.embedding for out in outputs])

    alone, read_alone = answers([engine.submit(p, GREEDY) for p in prompts]), results(readings())
    before = engine.stats()
    generations = []
    for prompt, reading in zip(prompts * 2, mixed := readings(), strict=True):
        generations.append(engine.submit(prompt, GREEDY))
        assert reading.prompt_ids
    together = answers(generations)
    if HAS_AVX512:
        assert together == alone * 2, "to the bit"
    else:  # XLA's products of float32 round one row otherwise than several there
        for answer, undisturbed in zip(together, alone * 2, strict=True):
            for one, other in zip(answer, undisturbed, strict=True):
                assert [each.token_id for each in one] == [each.token_id for each in other]
                np.testing.assert_allclose([each.logprob for each in one], [each.logprob for each in other], atol=1e-5)
    np.testing.assert_allclose(results(mixed), read_alone, atol=1e-5)
    settled(engine)
    after = engine.stats()
    assert after.compiles_after_ready == compiled
    assert after.scored_tokens - before.scored_tokens == 6 * 28 and after.embeddings - before.embeddings == 6
    assert after.generated_tokens - before.generated_tokens == 12 * 24
    assert (after.preemptions > before.preemptions) == (pages == 12)


def test_the_context_may_be_filled(load: Load) -> None:
    text = tokens(128, 9)
    assert len(load().score(text[:100], [text[100:]])[0]) == 28
    assert load().embed([text]).shape == (1, load().capabilities.embedding_size)
    for refused in (lambda: load().score(text, [[5]]), lambda: load().embed([[*text, 5]])):
        with pytest.raises(PromptTooLong, match=r"context holds 128"):
            refused()
    with pytest.raises(PromptTooLong, match="KV cache holds 48"):
        load(pages=4).score(text[:40], [text[:10]])
    assert len(load(pages=4).score(text[:40], [text[:9]])[0]) == 9


def test_what_is_refused(load: Load) -> None:
    def field(request: Callable[[], object]) -> str:
        with pytest.raises(RequestError) as caught:
            request()
        return caught.value.field

    engine = load()
    assert field(lambda: engine.score([], [[5]])) == "prefix"
    assert field(lambda: engine.score([320], [[5]])) == "prefix"
    assert field(lambda: engine.score([5], [[]])) == "suffix"
    assert field(lambda: engine.score([5], [[5], [-1]])) == "suffix"
    assert field(lambda: engine.score([5], [])) == "suffix"
    assert field(lambda: engine.score([5], [[5]] * 129)) == "suffix"
    assert field(lambda: engine.score("the", "quick")) == "suffix", "one string would be taken for its letters"
    assert field(lambda: engine.embed([[]])) == "prompt"
    assert field(lambda: engine.embed(["the"], "max")) == "pooling"
    settled(engine)


def test_leaving_frees_everything(load: Load) -> None:
    engine = load()
    open_ = [engine.submit_score(PREFIX, [tokens(70, seed) for seed in range(20)]) for _ in range(4)]
    for generation in open_:
        generation.abort()
        assert {answer[0].finish_reason for answer in read(generation)} <= {"abort", "stop"}
    settled(engine)


def test_a_full_queue_refuses_a_score(load: Load) -> None:
    engine = load(max_batch_size=2, max_waiting=3)
    running = engine.submit(tokens(20, 1), SamplingParams(n=4, max_tokens=100, ignore_eos=True))
    while engine.stats().waiting != 2:
        pass
    with pytest.raises(QueueFull, match="max_waiting 3"):
        engine.submit_score([5], [[5], [6]])
    running.abort()
    read(running)
    assert len(engine.embed([[token] for token in range(20)], "last")) == 20
    settled(engine)


def test_an_engine_that_fails_says_so(load: Load) -> None:
    engine = Engine.load(load().config)

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell over")

    engine.tokens.loops[0].executor.read = broken
    with pytest.raises(EngineStopped, match="fell over"):
        engine.score([5], [[5]])
    with pytest.raises(EngineStopped, match="fell over"):
        engine.embed([[5]])
