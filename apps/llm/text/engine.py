"""A model in words: prompts and chats in, text out, over a token engine.

    from apps.llm.text import Engine, SamplingParams
    engine = Engine.load("meta-llama/Llama-3.2-1B-Instruct")
    for output in engine.submit("How many days are in a week?", SamplingParams(max_tokens=32)):
        print(output.text, end="", flush=True)

`submit` makes tokens of a request and queues it; an invalid one, or one that can never fit, fails here. The outputs of
the token engine become text on their way to whoever reads them; see `generation`. `submit_score` and `submit_embedding`
queue prompts without an answer.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ids
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from apps.llm.api import (
    ANYONE,
    AdapterInfo,
    Caller,
    CallerStats,
    EngineStats,
    Pool,
    QueueFull,
    RequestError,
    TokenRequest,
    UnknownAdapter,
)
from apps.llm.chat.conversation import ChatRequest
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.engine.engine import JaxEngine
from apps.llm.engine.executor_protocol import DevicePlace
from apps.llm.engine.interface import TokenEngine
from apps.llm.engine.weights.model import Model
from apps.llm.text.admission import Admission
from apps.llm.text.answer import AnswerText
from apps.llm.text.generation import Delivery, Generation
from apps.llm.text.limits import TokenLimit, check_suffixes
from apps.llm.text.model_files import pooling_of, sampling_defaults_of, tokenizer_of
from apps.llm.text.reranker import Reranker
from apps.llm.text.sampling import grammar_of, sampling_of
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text.validation import answer_limit, check_params, check_room
from apps.llm.text_api import Output, SamplingParams
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice


class Engine:
    """A model in words. Make one with `Engine.load`.

    Args:
        config: of which the limits of callers, the formats and the reranker are used here.
        tokens: the engine that computes.
        pooling: how a model for embeddings makes them by default.
        sampling_defaults: the model's own values of SamplingParams' fields.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokens: TokenEngine,
        tokenizer: ModelTokenizer,
        reranker: Reranker | None = None,
        pooling: Pool = "mean",
        sampling_defaults: Mapping[str, Any] | None = None,
    ):
        self.config, self.tokens, self.tokenizer = config, tokens, tokenizer
        self.capabilities = tokens.capabilities
        self.max_model_len = self.capabilities.max_model_len
        format_ = ModelFormat.of(tokenizer.chat_template, config.tool_call_format, config.reasoning_format)
        self.format = format_.on(self.capabilities.special_tokens, tokenizer.render)
        """How the model writes tool calls and reasoning."""
        self.reranker = reranker
        """How the model judges documents; None: by its embeddings, which `pooling` makes by default."""
        self.pooling: Pool = pooling
        self.sampling_defaults: Mapping[str, Any] = sampling_defaults or {}
        """The model's own values of SamplingParams' fields, for dialects whose requests do not name them."""
        self.admission = Admission(config.callers, config.max_waiting)
        """Limits and usage of each caller, over all DP ranks."""
        self._ids = itertools.count()
        self._delivery = Delivery()

    @classmethod
    def load(
        cls,
        config: EngineConfig | str,
        place: DevicePlace | None = None,
        slice: TpuSlice | None = None,
        **settings: Any,
    ) -> "Engine":
        """Read the model, compile every step and start the loop. Takes seconds to minutes; shows progress.

        Args:
            config: a config, or just the model: a local folder, a hub id, an fsspec URL or a registered name.
            place: where the model's devices are; default: those that this process sees.
            slice: the TPU slice that the devices belong to, if any, for choosing a layout.
            settings: fields of EngineConfig, if only a model is given: `Engine.load("google/gemma-2b", tiny=True)`.

        Raises:
            CheckpointError, UnsupportedModel: the model cannot be read, or its family is not supported.
            MemoryError: the KV cache has no room for one sequence of the longest length.
            ValueError: the config does not fit the model or the machine, or one of its adapters not the model.
        """
        if isinstance(config, str):
            config = EngineConfig(model=config, **settings)
        elif settings:
            raise TypeError(f"settings next to a whole config: put {', '.join(settings)} into the config")
        opened: list[tuple[Model, ModelTokenizer]] = []

        def vocabulary(model: Model) -> ModelTokenizer:
            opened.append((model, tokenizer_of(model)))
            return opened[-1][1]

        tokens = JaxEngine.load(config, vocabulary, place, slice)
        try:
            ((model, tokenizer),) = opened
            config, arch = tokens.config, model.arch
            engine = cls(
                config,
                tokens,
                tokenizer,
                Reranker.of(config, arch, tokenizer),
                pooling_of(model),
                sampling_defaults_of(model, config),
            )
            for name, location in config.adapters.items():
                engine.load_adapter(name, location)
        except BaseException:
            tokens.shutdown()
            raise
        return engine

    def submit(
        self,
        prompt: str | Ids[int],
        params: SamplingParams | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
        answer_ids: Ids[int] = (),
    ) -> Generation:
        """Queue a request. Read the result by iterating it (or, with `loop`, by `async for`).

        Returns at once, but for a grammar, which may take seconds to compile: see `begin`.

        Args:
            answer_ids: tokens of an answer that was begun elsewhere with the same seed; the outputs begin after them.

        Raises:
            RequestError: a value is out of range, or the prompt can never fit (PromptTooLong).
            QueueFull: `max_waiting` requests are waiting, or the caller is at one of its limits (LimitReached).
            EngineStopped: the loop has ended.
            UnknownAdapter: no adapter has that name.
        """
        generation, queued = self.begin(prompt, params, loop, caller, adapter, answer_ids)
        queued.result()
        return generation

    def begin(
        self,
        prompt: str | Ids[int],
        params: SamplingParams | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
        answer_ids: Ids[int] = (),
    ) -> "tuple[Generation, Future[None]]":
        """As `submit`, without waiting for its grammar: the future is done when the request is queued. Cancel it if the
        client leaves. What it fails with, a request that is not queued raises in `submit`."""
        params = params or SamplingParams()
        prompt_ids = self._ids_of("prompt", prompt)
        check_params(params, self.capabilities.vocab_size)
        limit = answer_limit(len(prompt_ids), params, self.max_model_len, self.capabilities.cache_tokens)
        so_far = tuple(self.checked("answer_ids", answer_ids)) if answer_ids else ()
        if so_far and (params.n > 1 or len(prompt_ids) + len(so_far) >= limit):
            raise RequestError(
                "answer_ids", "answer_ids: one answer can be continued, of fewer tokens than it may have"
            )
        generation = Generation(prompt_ids, params, caller=caller)
        first_seed = random.getrandbits(63) if params.seed is None else params.seed
        grammar = grammar_of(params)
        banned = self.banned(params)
        requests = [
            TokenRequest(
                id=next(self._ids),
                prompt_ids=generation.prompt_ids,
                answer_ids=so_far,
                limit=limit,
                sampling=sampling_of(params, first_seed, index, banned),
                grammar=grammar,
                priority=params.priority,
                **self._owned(caller, adapter, params.cache_salt),
            )
            for index in range(params.n)
        ]
        texts = [
            AnswerText(index, params, prompt_ids, self.tokenizer, self.capabilities.eos_token_ids, so_far)
            for index in range(params.n)
        ]
        return self._begin(generation, requests, texts, loop, adapter)

    def submit_score(
        self,
        prefix: str | Ids[int],
        suffixes: Ids[str | Ids[int]],
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the scoring of suffixes, each directly after the prefix; as `submit`, but with one output for each.

        A text prefix is encoded like a prompt, with special tokens; a text suffix separately and without them, so no
        token spans the boundary. Pass token ids if one should. The prefix is computed once for all suffixes, as far as
        whole pages of it are in the prefix cache.

        Raises:
            RequestError, QueueFull, EngineStopped: as `submit`, with the fields `prefix` and `suffix`.
        """
        check_suffixes(suffixes)
        prefix_ids = self._ids_of("prefix", prefix)
        suffix_ids = [self._ids_of("suffix", suffix, special=False) for suffix in suffixes]
        self._check_room("prefix", len(prefix_ids))
        for suffix in suffix_ids:
            self._check_room("suffix", len(suffix), after=len(prefix_ids))
        return self._submit_scores(prefix_ids, suffix_ids, loop, caller, adapter)

    def submit_prompt_scores(
        self,
        prompt: Ids[int],
        params: SamplingParams,
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the scoring of a prompt's own tokens, all but the first; as `submit`, but with one output.

        Args:
            params: of the prompt's request, only to validate them. `max_tokens` may be 0.

        Raises:
            RequestError, QueueFull, EngineStopped: as `submit`.
        """
        positive = replace(params, max_tokens=1) if params.max_tokens == 0 else params
        check_params(positive, self.capabilities.vocab_size)
        ids = self._ids_of("prompt", prompt)
        self._check_room("prompt", len(ids))
        return self._submit_scores(ids, [ids[1:]], loop, caller, adapter, params.cache_salt, first=1)

    def submit_embedding(
        self,
        prompt: str | Ids[int],
        pooling: Pool = "mean",
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the embedding of a prompt; as `submit`, but with one output.

        Raises:
            RequestError, QueueFull, EngineStopped: as `submit`.
        """
        if pooling not in ("mean", "last"):
            raise RequestError("pooling", f"pooling must be 'mean' or 'last', not {pooling!r}")
        ids = tuple(self._ids_of("prompt", prompt))
        self._check_room("prompt", len(ids))
        owned = self._owned(caller, adapter)
        request = TokenRequest(id=next(self._ids), prompt_ids=ids, pooling=pooling, **owned)
        return self._submit(Generation(ids, None, caller=caller), [request], loop, adapter)

    def _submit_scores(
        self,
        prefix: list[int],
        suffixes: list[list[int]],
        loop: asyncio.AbstractEventLoop | None,
        caller: Caller,
        adapter: str | None,
        cache_salt: str = "",
        first: int | None = None,
    ) -> Generation:
        """`first`: tokens of the prefix that come before the suffixes; None: all."""
        before, owned = tuple(prefix[:first]), self._owned(caller, adapter, cache_salt)
        requests = [
            TokenRequest(id=next(self._ids), prompt_ids=before, suffix=tuple(suffix), **owned) for suffix in suffixes
        ]
        return self._submit(Generation(prefix, None, len(suffixes), caller), requests, loop, adapter)

    def _submit(
        self,
        generation: Generation,
        requests: list[TokenRequest],
        loop: asyncio.AbstractEventLoop | None,
        adapter: str | None,
    ) -> Generation:
        _, queued = self._begin(generation, requests, [None] * len(requests), loop, adapter)
        queued.result()
        return generation

    def _begin(
        self,
        generation: Generation,
        requests: list[TokenRequest],
        texts: Ids[AnswerText | None],
        loop: asyncio.AbstractEventLoop | None,
        adapter: str | None,
    ) -> "tuple[Generation, Future[None]]":
        """Admit a request, and hand it to the token engine."""
        suffixes = sum(len(request.suffix or ()) - bool(request.suffix) for request in requests)
        prompt = len(requests[0].prompt_ids)
        usage = self.admission.admit(generation.caller, len(requests), prompt + suffixes)
        ids = [request.id for request in requests]
        generation.start(self.tokens, usage, ids, texts, loop)
        delivery = self._delivery
        delivery.expect(ids, generation)
        began = time.monotonic_ns()

        def settled(queued: "Future[None]") -> None:
            if requests[0].grammar is not None:
                generation.times.grammar = began, time.monotonic_ns()
                generation.times.queued = time.monotonic_ns()
            if queued.cancelled() or queued.exception() is not None:
                delivery.forget(ids)
                generation.refuse()

        try:
            queued = self.tokens.submit(requests, delivery.sink)
        except BaseException:
            delivery.forget(ids)
            generation.refuse()
            raise
        queued.add_done_callback(settled)
        return generation, queued

    def _owned(self, caller: Caller, adapter: str | None, cache_salt: str = "") -> dict[str, Any]:
        """Whose request it is, and what it shares."""
        salts = self.config.prefix_cache_of(caller.name), cache_salt
        key = None if adapter is None else self._adapter(adapter).key
        return {"caller": caller, "cache_salts": salts, "adapter": key}

    def banned(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The tokens of its `bad_words`: of each at the beginning of a text, and after a space where that is another
        token."""
        banned: list[tuple[int, ...]] = []
        for word in params.bad_words:
            first = tuple(self.tokenizer.encode_suffix(word))
            spaced = tuple(self.tokenizer.encode_suffix(" " + word.lstrip()))
            banned += [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]
        return tuple(banned)

    # -- adapters -----------------------------------------------------------------------------------------------

    def adapters(self) -> Ids[AdapterInfo]:
        """The LoRA adapters that requests can ask for, oldest first."""
        return self.tokens.adapters()

    def _adapter(self, name: str) -> AdapterInfo:
        for adapter in self.tokens.adapters():
            if adapter.name == name:
                return adapter
        raise UnknownAdapter(name)

    def load_adapter(self, name: str, location: str) -> None:
        """See `TokenEngine.load_adapter`; `submit` takes its name once this returns."""
        self.tokens.load_adapter(name, location)

    def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self.tokens.unload_adapter(name)

    # -- whole answers ------------------------------------------------------------------------------------------

    def generate(self, prompts: Ids[str | Ids[int]], params: SamplingParams | None = None) -> list[str]:
        """The answers to many prompts, in order: submits all (waiting while the queue is full), then reads them."""
        generations = [_submit_when_free(self.submit, prompt, params) for prompt in prompts]
        return ["".join(part.text for part in _outputs_of(generation) if part.index == 0) for generation in generations]

    def score(self, prefix: str | Ids[int], suffixes: Ids[str | Ids[int]]) -> list[list[float]]:
        """Log probability of each token of each suffix after the prefix, by the model's own distribution; see
        `submit_score`. Saxml's score of a suffix is their sum."""
        parts = _outputs_of(_submit_when_free(self.submit_score, prefix, suffixes))
        return [[score.logprob for score in part.scores] for part in sorted(parts, key=lambda part: part.index)]

    def embed(self, prompts: Ids[str | Ids[int]], pooling: Pool = "mean") -> np.ndarray:
        """A vector of length 1 for each prompt, `[prompts, hidden]` float32: the hidden states after the final norm,
        averaged over the prompt's tokens or of the last one."""
        generations = [_submit_when_free(self.submit_embedding, prompt, pooling) for prompt in prompts]
        return np.stack([np.asarray(_outputs_of(generation)[0].embedding) for generation in generations])

    def chat(
        self, request: ChatRequest, limit: TokenLimit | None = None, going: Callable[[], None] = lambda: None
    ) -> tuple[list[int], Turn]:
        """A chat's prompt ids, to submit with `turn.constrained(params)`, and the turn, which reads the answers.

        Args:
            limit, going: as of `ModelTokenizer.encode`.

        Raises:
            PromptTooLong: the prompt has more tokens than the limit.
            RequestError: the model's chat template refuses it, or has no place for tools.
        """
        self.format.check(request)
        prompt = self.format.rendered(request, partial(self.tokenizer.render, ending=request.ending))
        return self.tokenizer.encode_suffix(prompt, limit, going), self.format.turn(request, prompt)

    def callers(self) -> dict[str, CallerStats]:
        """Usage of each caller name, current and since the start."""
        return self.admission.stats()

    def stats(self) -> EngineStats:
        return self.tokens.stats()

    def check(self, step_deadline_s: float = 60.0) -> None:
        """See `TokenEngine.check`."""
        self.tokens.check(step_deadline_s)

    def lose_stuck(self, step_deadline_s: float) -> None:
        """See `TokenEngine.lose_stuck`."""
        self.tokens.lose_stuck(step_deadline_s)

    @property
    def busy(self) -> bool:
        """Whether requests are open."""
        return self.tokens.busy

    def shutdown(self) -> None:
        """Stop the engine. Open requests fail with an error that says so."""
        self.tokens.shutdown()

    def _check_room(self, field: str, count: int, after: int = 0) -> None:
        check_room(field, count, self.max_model_len, self.capabilities.cache_tokens, after)

    def token_limit(self, field: str) -> TokenLimit:
        """What no text of a request may exceed; with room for an answer, a prompt must be shorter still."""
        cache = self.capabilities.cache_tokens + 1  # the last token of a scored suffix takes none of it
        if cache < self.max_model_len:
            return TokenLimit(cache, field, "the KV cache")
        return TokenLimit(self.max_model_len, field)

    def _ids_of(self, field: str, text: str | Ids[int], special: bool = True) -> list[int]:
        if isinstance(text, str):
            return self.tokenizer.encode(text, self.token_limit(field), special)
        self.token_limit(field).check(len(text))
        return self.checked(field, text)

    def checked(self, field: str, token_ids: Ids[int]) -> list[int]:
        """The ids as a list. Raises RequestError if one is not in the vocabulary."""
        ids, size = list(token_ids), self.capabilities.vocab_size
        if not all(isinstance(token, int) and 0 <= token < size for token in ids):
            raise RequestError(field, f"{field}: token ids must be integers from 0 to {size - 1}")
        return ids


def _submit_when_free(submit: Callable[..., Generation], *request: Any) -> Generation:
    """Submit, waiting while the queue is full."""
    while True:
        try:
            return submit(*request)
        except QueueFull:
            time.sleep(0.01)


def _outputs_of(generation: Generation) -> list[Output]:
    """All outputs of a request. Raises EngineStopped."""
    parts = list(generation)
    for part in parts:
        part.raise_failure()
    return parts
