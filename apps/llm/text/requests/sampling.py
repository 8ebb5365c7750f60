"""The sampling settings of a request in words, as a token engine takes them."""

from apps.llm.api import Grammar, Sampling
from apps.llm.schemas.written import schema_grammar
from apps.llm.text_api import SamplingParams

GOLDEN = 0x9E3779B1


def sampling_of(params: SamplingParams, first_seed: int, index: int, banned: tuple[tuple[int, ...], ...]) -> Sampling:
    """The settings of one answer.

    Args:
        first_seed: of the request's first answer; each draws its own numbers.
        index: of the answer.
        banned: the tokens of `bad_words`.
    """
    only = params.allowed_token_ids
    return Sampling(
        seed=(first_seed + index * GOLDEN) % (2**31 - 1),  # folded to 31 bits, the width of the device's seeds
        temperature=params.temperature if params.top_p else 0.0,  # a share of nothing: the likeliest token
        top_k=max(params.top_k, 0),
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        logprobs=params.logprobs,
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=tuple(params.stop_token_ids),
        allowed_token_ids=None if only is None else tuple(only),
        banned=banned,
    )


def grammar_of(params: SamplingParams) -> Grammar | None:
    """What an answer must follow. Raises RequestError for a schema that is too large."""
    if params.grammar is not None:
        return params.grammar
    if params.pattern is not None:
        return params.pattern.grammar
    return None if params.json_schema is None else schema_grammar(params.json_schema)
