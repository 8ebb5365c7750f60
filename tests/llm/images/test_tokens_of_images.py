"""Answers about images, token for token as transformers' model and processor give them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from apps.llm.api import Caller, PromptImage, RequestError
from apps.llm.engine.prefix import reuse
from apps.llm.text import Engine, Output, SamplingParams
from apps.llm.text.generation import Generation
from apps.llm.text.images.reader import SeenTokens
from tests.llm.engine.asking import ids, read, settled
from tests.llm.images import seeing_models
from tests.llm.images.seeing_models import scene

Load = Callable[..., Engine]
ANSWER = 10


@dataclass
class Asked:
    """A prompt of texts and images, and what transformers answers."""

    images: list[Image.Image]
    texts: list[list[int]]
    family: str = "qwen3_5"

    @property
    def prompt(self) -> SeenTokens:
        return SeenTokens(*seeing_models.prompt(self.images, self.texts, self.family))

    def submit(self, engine: Engine, **more: Any) -> Generation:
        params = SamplingParams(**{"max_tokens": ANSWER, "min_tokens": ANSWER, "temperature": 0.0} | more)
        return engine.submit(self.prompt, params)

    def answer(self, engine: Engine) -> list[int]:
        return ids(read(self.submit(engine))[0])

    def expected(self, model: Any) -> list[int]:
        return seeing_models.greedy(model, self.images, self.prompt, ANSWER)

    def assert_as_likely(self, model: Any, answer: list[Output]) -> None:
        """Where some of an image's tokens see too little, the likeliest tokens may still be the same."""
        found = [entry.logprob for output in answer for entry in output.logprobs]
        wanted = seeing_models.log_probabilities(model, self.images, self.prompt, ANSWER)
        assert np.abs(found[:ANSWER] - wanted).max() < 1e-4, self


ASKED = {
    "one": Asked([scene(1, 40, 24)], [[5, 6, 7], [8, 9]]),
    "first of all": Asked([scene(2, 64, 64)], [[], [20]]),
    "several": Asked([scene(1, 40, 24), scene(3, 17, 50), scene(4, 90, 30)], [[5], [8, 9], [10, 11, 12], [20, 21]]),
    "one after another": Asked([scene(5, 24, 24), scene(6, 24, 40)], [[7, 8], [], [9]]),
    "larger than is taken": Asked([scene(7, 300, 200)], [[5, 6], [30, 31, 32]]),
    "smaller than is taken": Asked([scene(8, 5, 9)], [[5, 6], [30, 31, 32]]),
    "text alone": Asked([], [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]),
}


@pytest.fixture(scope="module")
def models() -> Callable[[str], Any]:
    made: dict[str, Any] = {}
    return lambda family: made.setdefault(family, seeing_models.make(family))


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "qwen3_5",
        pytest.param("qwen3_5_moe", marks=pytest.mark.slow),
        "qwen3_vl",
        "qwen3_vl_long",
        "qwen3_vl_moe",
        "qwen2_5_vl",
        "mistral3",
        "gemma3",
        "gemma4",
        "gemma4_e",
    ],
)
def test_alone_and_in_company(load_seeing: Load, models: Callable[[str], Any], family: str) -> None:
    """Prompts are computed in chunks of 16 tokens, which begin and end within images."""
    engine, model = load_seeing(family), models(family)
    compiled = engine.stats().compiles_after_ready  # by other tests, in this process
    every = {name: replace(asked, family=family) for name, asked in ASKED.items()}
    expected = {name: asked.expected(model) for name, asked in every.items()}
    assert len({tuple(answer) for answer in expected.values()}) >= len(every) - 1, "they must be told apart"
    for name, asked in every.items():
        assert asked.answer(engine) == expected[name], name
    together = {name: asked.submit(engine) for name, asked in every.items()}
    for name, generation in together.items():
        assert ids(read(generation)[0]) == expected[name], name
    assert engine.stats().compiles_after_ready == compiled
    settled(engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["qwen3_5", "qwen3_vl", "qwen3_vl_long", "qwen3_vl_moe", "qwen2_5_vl", "mistral3", "gemma3", "gemma4", "gemma4_e"],
)
def test_how_likely_tokens_are(load_seeing: Load, models: Callable[[str], Any], family: str) -> None:
    engine = load_seeing(family, prefix_cache=False)
    for asked in (replace(asked, family=family) for asked in ASKED.values()):
        asked.assert_as_likely(models(family), read(asked.submit(engine, logprobs=0))[0])


@pytest.mark.slow
def test_images_wait_for_room(load_seeing: Load, models: Callable[[str], Any]) -> None:
    """Four images of 64 tokens in turn, where there is room for one."""
    engine = load_seeing(image_tokens=64, prefix_cache=False)
    asked = [Asked([scene(seed, 64, 64)], [[5, seed], [8, 9]]) for seed in range(20, 24)]
    generations = [each.submit(engine) for each in asked]
    for each, generation in zip(asked, generations):
        assert ids(read(generation)[0]) == each.expected(models("qwen3_5"))
    assert engine.tokens.loops[0].stepper.scheduler.images.encodings == 4


@pytest.mark.slow
@pytest.mark.parametrize("family, pages", [("qwen3_5", 21), ("gemma3", 17)])
def test_preempted_prompts_see_again(load_seeing: Load, models: Callable[[str], Any], family: str, pages: int) -> None:
    engine = load_seeing(family, pages=pages, max_model_len=240, prefix_cache=False)
    asked = [Asked([scene(seed, 64, 48)], [[5, seed], [8, 9]], family) for seed in range(30, 35)]
    generations = [each.submit(engine, max_tokens=60, logprobs=0) for each in asked]
    answers = [read(generation)[0] for generation in generations]
    assert engine.stats().preemptions > 0
    for each, answer in zip(asked, answers):
        assert ids(answer)[:ANSWER] == each.expected(models(family))
        each.assert_as_likely(models(family), answer)


@pytest.mark.slow
def test_a_prefix_may_end_within_an_image(load_seeing: Load, models: Callable[[str], Any]) -> None:
    """Whose tokens in the cache have seen those that are not: pages of 8, and images of 16."""
    engine = load_seeing("gemma3", page_size=8)
    texts = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
    pictures = [scene(seed, 40, 40) for seed in (90, 91)]
    one, other = Asked(pictures, texts, "gemma3"), Asked([pictures[0]], texts[:2], "gemma3")
    for asked in (one, other, one):
        before = engine.stats().prefix_hit_tokens
        answer = read(asked.submit(engine, logprobs=0))[0]
        assert ids(answer) == asked.expected(models("gemma3"))
        asked.assert_as_likely(models("gemma3"), answer)
        hit = engine.stats().prefix_hit_tokens - before
    assert hit == 40, "the second image has the tokens from 25 to 41"
    again = Asked(pictures, [*texts[:2], []], "gemma3")
    for _ in range(2):
        assert again.answer(engine) == again.expected(models("gemma3"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_the_same_image_is_encoded_once_and_its_prefix_shared(
    load_seeing: Load, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Different images with the same text share nothing, as vLLM's `extra_keys` of a block's hash have it."""
    monkeypatch.setattr(reuse, "WORTH", 16)  # as long as 256 tokens, a state is not kept
    engine = load_seeing(family, image_tokens=200)
    images = engine.tokens.loops[0].stepper.scheduler.images
    one, other = (Asked([scene(seed, 64, 64)], [[5, 6, 7], [8, 9]], family) for seed in (40, 41))
    first = one.answer(engine)
    assert one.answer(engine) == first and images.encodings == 1
    hits = engine.stats().prefix_hit_tokens
    assert other.answer(engine) != first
    assert engine.stats().prefix_hit_tokens == hits and images.encodings == 2
    followed = Asked(one.images, [[5, 6, 7], [8, 9, 50, 51]], family)
    followed.answer(engine)
    followed.answer(engine)
    assert engine.stats().prefix_hit_tokens >= hits + (64 if family == "qwen3_5" else 16)
    assert images.encodings == 2


@pytest.mark.slow
def test_who_sent_an_image_is_nobody_elses_business(load_seeing: Load) -> None:
    """Encoded images are shared as cached prefixes are: else the time to a token would tell what others send."""
    alice, bob = Caller("alice"), Caller("bob")
    for sharing, expected in (("key", 2), ("all", 1)):
        engine = load_seeing(prefix_cache_sharing=sharing, image_tokens=128)
        prompt = Asked([scene(80, 40, 40)], [[5], [8]]).prompt
        for caller in (alice, bob, alice):
            read(engine.submit(prompt, SamplingParams(max_tokens=2, temperature=0.0), caller=caller))
        assert engine.tokens.loops[0].stepper.scheduler.images.encodings == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}])
def test_an_answer_goes_on_from_any_of_its_tokens(load_seeing: Load, sampling: dict[str, Any], family: str) -> None:
    engine, asked = load_seeing(family), replace(ASKED["several"], family=family)
    whole = ids(read(asked.submit(engine, **sampling))[0])
    params = SamplingParams(max_tokens=ANSWER, min_tokens=ANSWER, **sampling)
    for cut in range(1, ANSWER):
        rest = engine.submit(asked.prompt, params, answer_ids=whole[:cut])
        assert ids(read(rest)[0]) == whole[cut:], cut


def test_what_does_not_fit_is_refused(load_seeing: Load) -> None:
    engine = load_seeing()
    asked = ASKED["first of all"].prompt
    (image,) = asked.images
    (longer,) = Asked([scene(2, 64, 64)], [[5], [20]]).prompt.images
    broken = [PromptImage(image.start, image.grid, image.pixels[:-1], b"x"), longer]
    for wrong in broken:
        prompt = SeenTokens(asked if wrong is not longer else asked[: longer.end - 1], [wrong])
        with pytest.raises(RequestError, match="not of the size"):
            engine.submit(prompt)
    others = [Asked([scene(seed, 64, 64)], [[5], [20]]).prompt.images[0] for seed in range(50, 53)]
    with pytest.raises(RequestError, match="192 tokens; one request may have 160"):
        engine.submit(SeenTokens([*asked] * 3, others))
    assert ASKED["one"].answer(engine)
