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
import time
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ids
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from apps.llm.api import ANYONE, SESSION, AdapterInfo, Caller, CallerStats, EngineStats, Pool, UnknownAdapter
from apps.llm.chat.conversation import ChatRequest
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.engine.interface import TokenEngine
from apps.llm.text.admission import Admission
from apps.llm.text.chat_prompts import ChatPrompts
from apps.llm.text.generation import Delivery, Generation
from apps.llm.text.images.reader import ImageReader
from apps.llm.text.loading import open_model, open_words
from apps.llm.text.requests.maker import Made, Owner, RequestMaker
from apps.llm.text.requests.prompt_ids import PromptIds
from apps.llm.text.reranker import Reranker
from apps.llm.text.scripting import Scripting
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import SamplingParams
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

if TYPE_CHECKING:  # a router's process has no JAX
    from apps.llm.engine.executor_protocol import ExecutorProvider
    from apps.llm.engines.vllm.processes import VllmProcess


class Engine(Scripting):
    """A model in words. Make one with `Engine.load`.

    Args:
        config: of which the limits of callers, the formats and the reranker are used here.
        tokens: the engine that computes.
        pooling: how a model for embeddings makes them by default.
        sampling_defaults: the model's own values of SamplingParams' fields.
        images: reads images; None: the engine takes none.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokens: TokenEngine,
        tokenizer: ModelTokenizer,
        reranker: Reranker | None = None,
        pooling: Pool = "mean",
        sampling_defaults: Mapping[str, Any] | None = None,
        images: ImageReader | None = None,
    ):
        self.config, self.tokens, self.tokenizer = config, tokens, tokenizer
        self.capabilities = tokens.capabilities
        self.max_model_len = self.capabilities.max_model_len
        self.prompts = PromptIds(tokenizer, self.capabilities)
        """Makes token ids of texts."""
        format_ = ModelFormat.of(tokenizer.chat_template, config.tool_call_format, config.reasoning_format)
        self.format = format_.on(self.capabilities.special_tokens, tokenizer.render)
        """How the model writes tool calls and reasoning."""
        self.reranker = reranker
        """How the model judges documents; None: by its embeddings, which `pooling` makes by default."""
        self.pooling: Pool = pooling
        self.sampling_defaults: Mapping[str, Any] = sampling_defaults or {}
        """The model's own values of SamplingParams' fields, for dialects whose requests do not name them."""
        self._chats = ChatPrompts(tokenizer, images)
        self.admission = Admission(config.callers, config.max_waiting)
        """Limits and usage of each caller, over all DP ranks."""
        self._requests = RequestMaker(tokenizer, self.prompts, self.capabilities)
        self._delivery = Delivery()

    @classmethod
    def load(
        cls,
        config: EngineConfig | str,
        provider: "ExecutorProvider | VllmProcess | None" = None,
        slice: TpuSlice | None = None,
        **settings: Any,
    ) -> "Engine":
        """Read the model, compile every step and start the loop. Takes seconds to minutes; shows progress.

        Args:
            config: a config, or just the model: a local folder, a hub id, an fsspec URL or a registered name.
            provider: where the model's devices are, or its vLLM; default: those that this process sees, or one beside.
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
        opened = open_model(config, provider, slice)
        try:
            engine = cls(opened.config, opened.tokens, *opened[2:])
            for name, location in engine.config.adapters.items():
                engine.load_adapter(name, location)
        except BaseException:
            opened.tokens.shutdown()
            raise
        return engine

    @classmethod
    def over(cls, config: EngineConfig, tokens: TokenEngine) -> "Engine":
        """The config's model in words, over an engine that others have loaded. Reads its files, but no weights."""
        return cls(config, tokens, *open_words(config, tokens.capabilities))

    def submit(
        self,
        prompt: str | Ids[int],
        params: SamplingParams | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
        answer_ids: Ids[int] = (),
        wait: bool = True,
    ) -> Generation:
        """Queue a request. Read the result by iterating it (or, with `loop`, by `async for`).

        Args:
            answer_ids: tokens of an answer that was begun elsewhere with the same seed; the outputs begin after them.
            wait: for the request to be queued, which takes a grammar seconds to compile. If not, its `queued` is done
                when it is, or has what would be raised here; cancel that if the client leaves before.

        Raises:
            RequestError: a value is out of range, or the prompt can never fit (PromptTooLong).
            QueueFull: `max_waiting` requests are waiting, or the caller is at one of its limits (LimitReached).
            EngineStopped: the loop has ended.
            UnknownAdapter: no adapter has that name.
        """
        params = params or SamplingParams()
        made = self._requests.answers(prompt, params, self._owner(caller, adapter, params.cache_salt), answer_ids)
        return self._submit(made, loop, wait)

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
        return self._submit(self._requests.scores(prefix, suffixes, self._owner(caller, adapter)), loop)

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
        owner = self._owner(caller, adapter, params.cache_salt)
        return self._submit(self._requests.prompt_scores(prompt, params, owner), loop)

    def submit_embedding(
        self,
        prompt: str | Ids[int],
        pooling: Pool = "mean",
        loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the embedding of a prompt; as `submit`, but with one output. Raises the same."""
        return self._submit(self._requests.embedding(prompt, pooling, self._owner(caller, adapter)), loop)

    def _submit(self, made: Made, loop: asyncio.AbstractEventLoop | None, wait: bool = True) -> Generation:
        """Admit a request, and hand it to the token engine."""
        generation, requests, texts = made
        usage = self.admission.admit(generation.caller, len(requests), made.prompt_tokens)
        ids = [request.id for request in requests]
        generation.start(self.tokens, usage, ids, texts, loop)
        delivery = self._delivery
        delivery.expect(ids, generation)
        began = time.monotonic_ns()

        known, compiles = weakref.ref(generation), requests[0].grammar is not None  # it has the future, which has this

        def settled(queued: "Future[None]") -> None:
            if (generation := known()) is None:  # it has ended
                return
            if compiles:
                generation.times.grammar = began, time.monotonic_ns()
                generation.times.queued = time.monotonic_ns()
            if queued.cancelled() or queued.exception() is not None:
                delivery.forget(ids)
                generation.refuse()

        try:
            generation.queued = self.tokens.submit(requests, delivery.sink)
        except BaseException:
            delivery.forget(ids)
            generation.refuse()
            raise
        generation.queued.add_done_callback(settled)
        if wait:
            generation.queued.result()
        return generation

    def _owner(self, caller: Caller, adapter: str | None, cache_salt: str = "") -> Owner:
        key = None if adapter is None else self._adapter(adapter).key
        return Owner(caller, key, (self.config.prefix_cache_of(caller.name), cache_salt), SESSION.get())

    # -- adapters -----------------------------------------------------------------------------------------------

    def adapters(self) -> Ids[AdapterInfo]:
        """The LoRA adapters that requests can ask for, oldest first."""
        return self.tokens.adapters()

    def _adapter(self, name: str) -> AdapterInfo:
        if (found := next((each for each in self.tokens.adapters() if each.name == name), None)) is None:
            raise UnknownAdapter(name)
        return found

    def load_adapter(self, name: str, location: str) -> None:
        """See `TokenEngine.load_adapter`; `submit` takes its name once this returns."""
        self.tokens.load_adapter(name, location)

    def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self.tokens.unload_adapter(name)

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
        return self._chats.made(self.format, request, limit, going)

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
