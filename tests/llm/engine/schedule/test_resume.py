"""An answer that is continued from any of its tokens is the answer that nobody disturbed.

The oracle is the undisturbed answer of the same engine: tokens, text, log probabilities and how it ends.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apps.llm.api import RequestError
from apps.llm.text import Engine, Output, SamplingParams
from tests.llm.engine.asking import ids, read, settled, text

Load = Callable[..., Engine]
PROMPT = "the quick brown fox jumps over the lazy dog; the days of the week are"
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "string", "maxLength": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
MERGED = {"allOf": [OBJECT, {"type": "object", "properties": {"a": {"minimum": 3}}}]}
"""Followed in another process: not surely cheap."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"seed": 7},
    "few tokens": {"seed": 8, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "temperature": 1.5},
    "penalties": {"seed": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "logprobs": {"seed": 10, "logprobs": 3},
    "bias": {"seed": 11, "logit_bias": {5: 4.0, 6: -100.0}, "bad_words": ["the quick", "o"]},
    "min_tokens": {"seed": 12, "min_tokens": 10, "ignore_eos": False, "logit_bias": {1: 6.0}},
    "stop token": {"temperature": 0.0, "logit_bias": {17: 3.0}, "stop_token_ids": [17], "min_tokens": 6},
    "stop string": {"seed": 13, "logit_bias": {101: 3.0, 102: 3.0}, "stop": ["ab", "zzz", "e"]},
    "schema": {"seed": 14, "json_schema": OBJECT, "ignore_eos": False},
    "schema elsewhere": {"seed": 15, "json_schema": MERGED, "ignore_eos": False},
}


def params_of(kind: str, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True} | KINDS[kind])


def continued_everywhere(engine: Engine, kind: str, prompt: str = PROMPT, tolerance: float = 1e-5, **more: Any) -> None:
    params = params_of(kind)
    whole = read(engine.submit(prompt, params, **more))[0]
    tokens, last = ids(whole), whole[-1]
    assert len(tokens) > 3
    cuts = range(1, len(tokens))
    rest = {cut: engine.submit(prompt, params, answer_ids=tokens[:cut], **more) for cut in cuts}
    for cut, generation in rest.items():
        outputs = read(generation)[0]
        assert ids(outputs) == tokens[cut:], (kind, cut)
        assert text(outputs) == text(after(whole, cut)), (kind, cut)
        assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (last.finish_reason, last.stop_reason)
        np.testing.assert_allclose(logprobs(outputs), logprobs(after(whole, cut)), atol=tolerance)
        assert [p.offset for out in outputs for p in out.logprobs] == [
            p.offset for out in after(whole, cut) for p in out.logprobs
        ]


def after(outputs: list[Output], count: int) -> list[Output]:
    """The outputs after so many tokens. The engine sends one for each token."""
    taken = 0
    for i, output in enumerate(outputs):
        if taken == count:
            return outputs[i:]
        taken += len(output.token_ids)
    return outputs[len(outputs) :]


def logprobs(outputs: list[Output]) -> list[float]:
    return [given.logprob for output in outputs for given in output.logprobs]


@pytest.mark.parametrize("kind", KINDS)
def test_at_every_cut(load: Load, kind: str) -> None:
    continued_everywhere(load(), kind)
    settled(load())


def test_while_others_are_preempted(load: Load) -> None:
    """Few pages: continued answers are preempted and computed again, and end as if alone."""
    engine = load(pages=12, max_batch_size=8, prefix_cache=False)
    before = engine.stats().preemptions
    for kind in ("sampled", "penalties", "schema"):
        continued_everywhere(engine, kind)
    assert engine.stats().preemptions > before


def check_that_it_promises(engine: Engine, name: str) -> None:
    """Skip bfloat16 where a step's size changes its bits: see `Capabilities.resumes_exactly`."""
    if name == "bfloat16" and not engine.capabilities.resumes_exactly:
        pytest.skip("in bfloat16 a near tie may fall the other way on this CPU")


ENGINES: dict[str, dict[str, Any]] = {
    "no prefix cache": {"prefix_cache": False},
    "int8 weights": {"quantize_weights": "int8"},
    "int8 KV": {"quantize_kv_cache": "int8"},
    "fp8 KV": {"quantize_kv_cache": "fp8"},
    "bfloat16": {"dtype": "bfloat16"},
    "speculation": {"speculation": "ngram"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_in_every_engine(load: Load, name: str) -> None:
    engine = load(**ENGINES[name])
    check_that_it_promises(engine, name)
    for kind in ("greedy", "sampled", "penalties", "schema"):
        continued_everywhere(engine, kind)


LONG = {"max_step_tokens": 128, "prefix_cache": False}
"""Prompt and answer are computed again in one step, whose products have more rows than a step of decoding."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8 weights", "bfloat16", "float32"])
def test_in_steps_of_many_rows(load: Load, name: str) -> None:
    engine = load(**ENGINES.get(name, {}) | LONG)
    check_that_it_promises(engine, name)
    for kind in ("greedy", "sampled", "logprobs"):
        continued_everywhere(engine, kind, PROMPT * 4)


@pytest.mark.slow
def test_with_an_adapter(load: Load) -> None:
    engine = load(tiny=True, max_adapters=2)
    engine.load_adapter("drawn", "nowhere")
    for kind in ("greedy", "sampled"):
        continued_everywhere(engine, kind, adapter="drawn")


def test_several_answers_and_an_answer_without_tokens(load: Load) -> None:
    params = replace(params_of("sampled"), n=3)
    whole = [ids(answer) for answer in read(load().submit(PROMPT, params))]
    assert len({tuple(answer) for answer in whole}) == 3, "each draws its own numbers"
    assert [ids(answer) for answer in read(load().submit(PROMPT, params, answer_ids=()))] == whole


def test_what_cannot_be_continued_is_refused(load: Load) -> None:
    with pytest.raises(RequestError, match="answer_ids"):
        load().submit(PROMPT, params_of("greedy"), answer_ids=[320])
    with pytest.raises(RequestError, match="answer_ids"):
        load().submit(PROMPT, params_of("greedy", max_tokens=3), answer_ids=[5, 5, 5])
    with pytest.raises(RequestError, match="response_format"):
        load().submit(PROMPT, params_of("schema"), answer_ids=[5, 5]).wait()
    settled(load())
