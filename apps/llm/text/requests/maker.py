"""Makes token requests of requests in words."""

import itertools
import random
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import NamedTuple

from apps.llm.api import Caller, Capabilities, Pool, RequestError, TokenRequest
from apps.llm.text.answer import AnswerText
from apps.llm.text.generation import Generation
from apps.llm.text.images.reader import SeenTokens
from apps.llm.text.requests.prompt_ids import PromptIds
from apps.llm.text.requests.sampling import grammar_of, sampling_of
from apps.llm.text.requests.validation import answer_limit, check_params
from apps.llm.text.tokenizer.limits import check_suffixes
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import SamplingParams


class Owner(NamedTuple):
    """Whose request it is, and what it shares; as TokenRequest has it."""

    caller: Caller
    adapter: bytes | None
    cache_salts: tuple[str, ...]
    session: str


class Made(NamedTuple):
    """A request: what its reader gets, what the token engine gets for each of its sequences, and their texts."""

    generation: Generation
    requests: list[TokenRequest]
    texts: Ids[AnswerText | None]  # None: nothing is sampled

    @property
    def prompt_tokens(self) -> int:
        """Tokens to compute, but for those of the answers. Nothing follows the last one of a suffix."""
        suffixes = sum(len(request.suffix or ()) - bool(request.suffix) for request in self.requests)
        return len(self.requests[0].prompt_ids) + suffixes


class RequestMaker:
    """Checks requests and makes token requests of them. All raise RequestError.

    Args:
        sizes: of the token engine.
    """

    def __init__(self, tokenizer: ModelTokenizer, prompts: PromptIds, sizes: Capabilities):
        self._tokenizer, self._prompts, self._sizes = tokenizer, prompts, sizes
        self._numbers = itertools.count()

    def answers(self, prompt: str | Ids[int], params: SamplingParams, owner: Owner, so_far: Ids[int]) -> Made:
        """A request for `params.n` answers; `so_far` continues one."""
        sizes = self._sizes
        prompt_ids = tuple(self._prompts.ids("prompt", prompt))
        check_params(params, sizes.vocab_size)
        limit = answer_limit(len(prompt_ids), params, sizes.max_model_len, sizes.cache_tokens)
        so_far = tuple(self._prompts.checked("answer_ids", so_far))
        if so_far and (params.n > 1 or len(prompt_ids) + len(so_far) >= limit):
            raise RequestError(
                "answer_ids", "answer_ids: one answer can be continued, of fewer tokens than it may have"
            )
        first_seed = random.getrandbits(63) if params.seed is None else params.seed
        grammar, banned = grammar_of(params), self._prompts.banned(params)
        requests = [
            TokenRequest(
                id=next(self._numbers),
                prompt_ids=prompt_ids,
                images=prompt.images if isinstance(prompt, SeenTokens) else (),
                answer_ids=so_far,
                limit=limit,
                sampling=sampling_of(params, first_seed, index, banned),
                grammar=grammar,
                priority=params.priority,
                **owner._asdict(),
            )
            for index in range(params.n)
        ]
        texts = [
            AnswerText(index, params, prompt_ids, self._tokenizer, sizes.eos_token_ids, so_far)
            for index in range(params.n)
        ]
        return Made(Generation(prompt_ids, params, caller=owner.caller), requests, texts)

    def scores(self, prefix: str | Ids[int], suffixes: Ids[str | Ids[int]], owner: Owner) -> Made:
        """A request for the scores of suffixes after a prefix."""
        check_suffixes(suffixes)
        prefix_ids = self._prompts.ids("prefix", prefix)
        suffix_ids = [self._prompts.ids("suffix", suffix, special=False) for suffix in suffixes]
        self._prompts.check_room("prefix", len(prefix_ids))
        for suffix in suffix_ids:
            self._prompts.check_room("suffix", len(suffix), after=len(prefix_ids))
        return self._scores(prefix_ids, prefix_ids, suffix_ids, owner)

    def prompt_scores(self, prompt: Ids[int], params: SamplingParams, owner: Owner) -> Made:
        """A request for the scores of a prompt's own tokens, all but the first."""
        positive = replace(params, max_tokens=1) if params.max_tokens == 0 else params
        check_params(positive, self._sizes.vocab_size)
        ids = self._prompts.ids("prompt", prompt)
        self._prompts.check_room("prompt", len(ids))
        return self._scores(ids, ids[:1], [ids[1:]], owner)

    def _scores(self, shown: list[int], prefix: list[int], suffixes: list[list[int]], owner: Owner) -> Made:
        """`shown`: the prompt that the reader sees."""
        requests = [
            TokenRequest(id=next(self._numbers), prompt_ids=tuple(prefix), suffix=tuple(suffix), **owner._asdict())
            for suffix in suffixes
        ]
        generation = Generation(shown, None, len(suffixes), owner.caller)
        return Made(generation, requests, [None] * len(requests))

    def embedding(self, prompt: str | Ids[int], pooling: Pool, owner: Owner) -> Made:
        """A request for a prompt's embedding."""
        if pooling not in ("mean", "last"):
            raise RequestError("pooling", f"pooling must be 'mean' or 'last', not {pooling!r}")
        ids = tuple(self._prompts.ids("prompt", prompt))
        self._prompts.check_room("prompt", len(ids))
        request = TokenRequest(id=next(self._numbers), prompt_ids=ids, pooling=pooling, **owner._asdict())
        return Made(Generation(ids, None, caller=owner.caller), [request], [None])
