"""How far an answer may go: the context, the KV cache, and what the request asks for."""

import pytest

from apps.llm.api import PromptTooLong, RequestError
from apps.llm.text.requests.validation import answer_limit
from apps.llm.text_api import SamplingParams

CONTEXT, CACHE = 100, 80


@pytest.mark.parametrize(
    ("prompt", "params", "limit"),
    [
        (10, SamplingParams(), CACHE),
        (10, SamplingParams(max_tokens=5), 15),
        (10, SamplingParams(max_tokens=70), CACHE),
        (10, SamplingParams(max_tokens=5, within_context=True), 15),
        (10, SamplingParams(max_tokens=71, within_context=True), CACHE),
        (79, SamplingParams(max_tokens=10**6, within_context=True), CACHE),
    ],
)
def test_the_limit(prompt: int, params: SamplingParams, limit: int) -> None:
    assert answer_limit(prompt, params, CONTEXT, CACHE) == limit


@pytest.mark.parametrize(("prompt", "most", "error"), [(10, 71, RequestError), (80, 1, PromptTooLong)])
def test_what_cannot_fit(prompt: int, most: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        answer_limit(prompt, SamplingParams(max_tokens=most), CONTEXT, CACHE)
    if error is PromptTooLong:  # there is no room to begin in
        with pytest.raises(error):
            answer_limit(prompt, SamplingParams(max_tokens=most, within_context=True), CONTEXT, CACHE)
