"""Validates requests before they enter the engine. Each error names the field and the fix."""

import math

from apps.llm.api import (
    MAX_BIAS,
    MAX_CHOICES,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_WORDS,
    TOP_LOGPROBS,
    PromptTooLong,
    RequestError,
)
from apps.llm.text_api import SamplingParams
from apps.serving.errors import shortened


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError for a sampling parameter out of range."""

    def require(good: bool, field: str, rule: str) -> None:
        if not good:
            raise RequestError(field, f"{field} must be {rule}, not {shortened(repr(getattr(params, field)), 100)}")

    def number(field: str, low: float, high: float, rule: str) -> None:
        value = getattr(params, field)
        require(isinstance(value, int | float) and low <= value <= high, field, rule)  # NaN is not

    number("temperature", 0, 100, "between 0 and 100")
    number("top_p", 0, 1, "between 0 and 1")
    number("min_p", 0, 1, "between 0 and 1")
    number("presence_penalty", -2, 2, "between -2 and 2")
    number("frequency_penalty", -2, 2, "between -2 and 2")
    number("repetition_penalty", 0.01, 100, "between 0.01 and 100")
    number("top_k", -1, 2**31 - 1, "-1 or 0 (all tokens) or a positive count")
    number("n", 1, MAX_CHOICES, f"between 1 and {MAX_CHOICES}")
    number("min_tokens", 0, 2**31 - 1, "0 or more")
    require(params.max_tokens is None or params.max_tokens >= 1, "max_tokens", "1 or more")
    require(params.max_tokens is None or params.min_tokens <= params.max_tokens, "min_tokens", "at most max_tokens")
    number("priority", -(2**63), 2**63 - 1, "a 64-bit integer, lower for earlier")
    require(params.seed is None or -(2**63) <= params.seed < 2**63, "seed", "a 64-bit integer")
    require(
        params.logprobs is None or 0 <= params.logprobs <= TOP_LOGPROBS, "logprobs", f"between 0 and {TOP_LOGPROBS}"
    )
    require(len(params.logit_bias) <= MAX_BIAS, "logit_bias", f"a map of at most {MAX_BIAS} tokens")
    for token, bias in params.logit_bias.items():
        require(0 <= token < vocab_size, "logit_bias", f"a map from token ids below {vocab_size}")
        require(math.isfinite(bias) and -100 <= bias <= 100, "logit_bias", "a map to values between -100 and 100")
    require(len(params.stop_token_ids) <= MAX_STOP_TOKENS, "stop_token_ids", f"at most {MAX_STOP_TOKENS} ids")
    require(all(0 <= t < vocab_size for t in params.stop_token_ids), "stop_token_ids", f"ids below {vocab_size}")
    only = params.allowed_token_ids
    require(only is None or len(only) > 0, "allowed_token_ids", "a list of at least one id")
    require(only is None or all(0 <= t < vocab_size for t in only), "allowed_token_ids", f"ids below {vocab_size}")
    for word in params.bad_words:
        require(0 < len(word.strip()) <= MAX_STOP_LENGTH, "bad_words", f"words of 1 to {MAX_STOP_LENGTH} characters")
    require(len(params.bad_words) <= MAX_WORDS, "bad_words", f"a list of at most {MAX_WORDS} words")
    one = isinstance(params.stop, str)  # iterating it would yield its characters
    require(len(params.stop) <= MAX_STOPS or one, "stop", f"a list of at most {MAX_STOPS} strings")
    require(not one and all(isinstance(s, str) and s for s in params.stop), "stop", "a list of non-empty strings")
    longest = max(map(len, params.stop), default=0)
    require(longest <= MAX_STOP_LENGTH, "stop", f"a list of strings of at most {MAX_STOP_LENGTH} characters")


def answer_limit(prompt_len: int, params: SamplingParams, max_model_len: int, cache_tokens: int) -> int:
    """The most tokens a sequence may have, prompt and answer together.

    Raises:
        RequestError: the prompt is empty, or max_tokens exceeds the context (without `within_context`).
        PromptTooLong: the prompt leaves no room for even one token of answer.
    """
    if prompt_len == 0:
        raise RequestError("prompt", "the prompt is empty: it must have at least one token")
    longest = min(max_model_len, cache_tokens)
    if prompt_len >= longest:
        what = "the model's context" if longest == max_model_len else "the KV cache"
        raise PromptTooLong(
            "prompt", f"the prompt has {prompt_len} tokens, but {what} holds {longest}, including the answer"
        )
    if params.max_tokens is None:
        return longest
    if prompt_len + params.max_tokens > longest:
        if params.within_context:
            return longest
        raise RequestError(
            "max_tokens",
            f"max_tokens is {params.max_tokens}, but a prompt of {prompt_len} tokens leaves room for "
            f"{longest - prompt_len} (context {longest})",
        )
    return prompt_len + params.max_tokens


def check_room(field: str, count: int, max_model_len: int, cache_tokens: int, after: int = 0) -> None:
    """Check that `count` tokens to score or embed fit; without an answer, they may fill the context.

    Args:
        after: length of the prefix before them, if they are a suffix. The suffix's last token is not computed.

    Raises:
        RequestError: there are no tokens.
        PromptTooLong: there are more than the model's context or the KV cache holds.
    """
    if count == 0:
        raise RequestError(field, f"the {field} is empty: it must have at least one token")
    said = f"the {field} has {count} tokens" + (f" after a prefix of {after}" if after else "")
    if after + count > max_model_len:
        raise PromptTooLong(field, f"{said}, but the model's context holds {max_model_len}")
    if after + count - bool(after) > cache_tokens:
        raise PromptTooLong(field, f"{said}, but the KV cache holds {cache_tokens}")
