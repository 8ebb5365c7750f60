"""Log probabilities of a prompt's own tokens, in the legacy format and in vLLM's."""

from collections.abc import Sequence
from typing import Any

from apps.llm.text_api import PromptToken


def prompt_scores(prompt: Sequence[PromptToken], text: str) -> dict[str, list[Any]]:
    """The legacy format of an echoed prompt's log probabilities; null for the first token.

    Of several tokens with the same text (parts of characters), only the likeliest is listed.
    """
    offsets, offset = [], 0
    for token in prompt:
        offsets.append(min(offset, len(text)))
        offset += token.shown
    scores = [token.score for token in prompt]
    return {
        "tokens": [token.text for token in prompt],
        "token_logprobs": [score and score.logprob for score in scores],
        "top_logprobs": [
            token.score and {token.text: token.score.logprob, token.likeliest_text: token.score.likeliest_logprob}
            for token in prompt
        ],
        "text_offset": offsets,
    }


def prompt_logprobs(prompt: Sequence[PromptToken], count: int) -> list[dict[str, Any] | None]:
    """vLLM's format: null for the first token, then for each a map from token id to log probability, rank and text."""
    entries: list[dict[str, Any] | None] = []
    for token in prompt:
        if (score := token.score) is None:
            entries.append(None)
            continue
        likeliest = {"logprob": score.likeliest_logprob, "rank": 1, "decoded_token": token.likeliest_text}
        own = {"logprob": score.logprob, "rank": score.rank, "decoded_token": token.text}
        entries.append(({str(score.likeliest): likeliest} if count else {}) | {str(token.token_id): own})
    return entries
