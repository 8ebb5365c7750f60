"""The engine: queues requests, runs the loop, streams tokens.

    from apps.llm.engine import Engine, SamplingParams
    engine = Engine.load("meta-llama/Llama-3.2-1B-Instruct")
    for output in engine.submit("How many days are in a week?", SamplingParams(max_tokens=32)):
        print(output.text, end="", flush=True)

The life of a request:
1. `submit`, in the caller's thread, validates and queues it. An invalid request, or one that can never fit, fails here.
2. The least busy DP rank takes it. Most replicas have one; see `parallel.layout`.
3. That rank's loop, in its own thread, schedules it into steps until it ends; see `loop`.

`submit_score` and `submit_embedding` queue prompts without an answer, which take the same path; see `pooling`.
"""

import logging
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ids
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from apps.arrays.program_cache import use_compile_cache
from apps.llm.api import (
    ANYONE,
    Caller,
    CallerStats,
    EngineStats,
    EngineStopped,
    Generation,
    Output,
    Pool,
    QueueFull,
    RequestError,
    SamplingParams,
)
from apps.llm.chat.conversation import ChatRequest
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.loaded import LoadedAdapters
from apps.llm.engine.adapters.peft import PeftAdapter
from apps.llm.engine.answer import Answer
from apps.llm.engine.execute.local import ThisProcess
from apps.llm.engine.executor_protocol import DevicePlace, Executor
from apps.llm.engine.fairness.admission import Admission
from apps.llm.engine.loop import Loop, Member
from apps.llm.engine.model.params import HeadLayout
from apps.llm.engine.parallel import layout
from apps.llm.engine.pooling import Pooling, Scoring
from apps.llm.engine.scheduler import Sequence
from apps.llm.engine.speculation.choice import TurnTimes
from apps.llm.engine.speculation.drafter import Drafter, grams
from apps.llm.engine.text.remote_matcher import RemoteMatcher
from apps.llm.engine.text.reranker import Reranker
from apps.llm.engine.text.structured import AnyMatcher, Grammars, Matcher
from apps.llm.engine.text.tokenizer import ModelTokenizer
from apps.llm.engine.validation import answer_limit, check_params, check_room
from apps.llm.engine.weights.model import Model
from apps.llm.limits import TokenLimit, check_suffixes
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

CALIBRATION_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs. In 1969, people first walked on the Moon; it took them 4 days.\n"
    'def area(width, height):\n    return width * height\n\n{"name": "Ada", "born": 1815, "likes": ["maths", "tea"]}\n'
    "Q: How many days are in a week?\nA: Seven. Le chat dort, der Hund bellt, el sol brilla. x = 3.14 * (2 + 7) / 5!\n"
)


class Engine:
    """A loaded model and its loops, one for each DP rank. Make one with `Engine.load`."""

    def __init__(
        self,
        config: EngineConfig,
        loops: list[Loop[Any]],
        tokenizer: ModelTokenizer,
        grammars: Grammars,
        max_model_len: int,
        heads: HeadLayout,
        pooling: Pool = "mean",
        sampling_defaults: Mapping[str, Any] | None = None,
    ):
        self.config, self.tokenizer, self.max_model_len = config, tokenizer, max_model_len
        self.loops, self._grammars = loops, grammars
        format_ = ModelFormat.of(tokenizer.chat_template, config.tool_call_format, config.reasoning_format)
        self.format = format_.on(grammars.tokens, tokenizer.render)
        """How the model writes tool calls and reasoning."""
        self._arch = replace(loops[0].executor.arch, eos_token_ids=grammars.eos_token_ids)
        self.reranker = Reranker.of(config, self._arch, tokenizer)
        """How the model judges documents; None: by its embeddings, which `pooling` makes by default."""
        self.pooling: Pool = pooling
        self.sampling_defaults: Mapping[str, Any] = sampling_defaults or {}
        """The model's own values of SamplingParams' fields, for dialects whose requests do not name them."""
        self.admission = Admission(config.callers, config.max_waiting)
        """Limits and usage of each caller, over all DP ranks."""
        self.adapters = LoadedAdapters(config.adapter_places)
        self._heads = heads  # of each DP rank
        self._places = threading.Lock()  # held while choosing the least busy rank and queueing on it

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
        use_compile_cache(config.compile_cache)
        # On a multi-host slice each host reads its own part; here the config and the tokenizer are enough.
        model = Model.open(config, weights=place is None)
        place = place or ThisProcess()
        config = model.settle(config)
        max_len = model.max_len(config)
        chosen = layout.choose(config, model.arch, place.devices(config), slice)
        model = model.at_size(config, chosen.tensor)
        # The tokenizer's imports and tables take as long as the weights: load both in parallel.
        with ThreadPoolExecutor(1) as pool:
            words = pool.submit(_load_tokenizer, model)
            executors = place.load(config, model, chosen)
            try:
                calibration = words.result()[0].encode(CALIBRATION_TEXT) if config.quantize_kv_cache == "int8" else []
                _allocate_and_compile(executors, [token for token in calibration if token < model.arch.vocab_size])
                of_rank = chosen.of_dp_rank(config)
                drafts = config.speculation == "ngram"
                timings = [TurnTimes.measured(executor, of_rank) if drafts else None for executor in executors]
                tokenizer, grammars = words.result()
            except BaseException:
                for executor in executors:
                    executor.close()
                raise
        loops = [Loop(of_rank, executor, times) for executor, times in zip(executors, timings)]
        heads = HeadLayout.of(model.arch, chosen.tensor, config.expert_parallel)
        defaults = model.sampling_defaults(config)
        engine = cls(config, loops, tokenizer, grammars, max_len, heads, model.pooling(), defaults)
        try:
            for name, location in config.adapters.items():
                engine.load_adapter(name, location)
        except BaseException:
            engine.shutdown()
            raise
        return engine

    # -- the callers' side --------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: str | Ids[int],
        params: SamplingParams | None = None,
        loop: Any = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
        matchers: Ids[AnyMatcher] | None = None,
    ) -> Generation:
        """Queue a request and return at once. Read the result by iterating it (or, with `loop`, by `async for`).

        Args:
            matchers: what `compile` has made for it; None: its grammar is compiled now, which may take seconds.

        Raises:
            RequestError: a value is out of range, or the prompt can never fit (PromptTooLong).
            QueueFull: `max_waiting` requests are waiting, or the caller is at one of its limits (LimitReached).
            EngineStopped: the loop has ended.
            UnknownAdapter: no adapter has that name.
        """
        params = params or SamplingParams()
        prompt_ids = self._ids_of("prompt", prompt)
        limit = self._limit(prompt_ids, params)
        generation = Generation(prompt_ids, params, caller=caller)
        first_seed = random.getrandbits(63) if params.seed is None else params.seed
        answers: list[Member] = []
        known = grams(prompt_ids) if self.config.speculation == "ngram" else None
        if params.constrained and matchers is None:
            began = time.monotonic_ns()
            matchers = self.compile(prompt_ids, params, caller).result()
            generation.times.grammar = began, time.monotonic_ns()
        for index in range(params.n):
            matcher = None if matchers is None else matchers[index]
            # Folded to 31 bits, the width of the device's seeds; each answer of a request draws its own numbers.
            seed = (first_seed + index * 0x9E3779B1) % (2**31 - 1)
            seq = Sequence(generation, index, limit, seed, list(prompt_ids), len(prompt_ids))
            answer = Answer(seq, self.tokenizer, self._arch, matcher)
            seq.lockstep = matcher is not None or bool(answer.words and answer.words.phrases)
            if known is not None and not answer.penalized:  # penalties need token counts, which the device keeps
                seq.drafter = Drafter(prompt_ids, known)
            answers.append((seq, answer))
        return self._queue(generation, answers, loop, adapter, params.cache_salt)

    def compile(
        self, prompt: Ids[int], params: SamplingParams, caller: Caller = ANYONE
    ) -> Future[Ids[Matcher]] | Future[Ids[RemoteMatcher]]:
        """Compile the grammar of a constrained request, for `submit`. Cancel the future if the client leaves.

        Raises:
            RequestError: as `submit`. Also from the future: the grammar is not valid or too complex.
            QueueFull: from the future: too many complex grammars are compiled or followed.
        """
        self._limit(prompt, params)
        held = params.constraint
        assert held is not None
        return self._grammars.matchers(held, params.n, (caller.name, caller.address))

    def _limit(self, prompt: Ids[int], params: SamplingParams) -> int:
        """The tokens at which an answer ends, with its prompt. Raises RequestError, as `submit`."""
        check_params(params, self._arch.vocab_size)
        return answer_limit(len(prompt), params, self.max_model_len, self._cache_tokens)

    def submit_score(
        self,
        prefix: str | Ids[int],
        suffixes: Ids[str | Ids[int]],
        loop: Any = None,
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
        check_room("prefix", len(prefix_ids), self.max_model_len, self._cache_tokens)
        for suffix in suffix_ids:
            check_room("suffix", len(suffix), self.max_model_len, self._cache_tokens, after=len(prefix_ids))
        generation = Generation(prefix_ids, None, len(suffix_ids), caller)
        tasks = [Scoring(generation, i, prefix_ids, suffix) for i, suffix in enumerate(suffix_ids)]
        return self._queue(generation, [(task.seq, task) for task in tasks], loop, adapter)

    def submit_prompt_scores(
        self,
        prompt: Ids[int],
        params: SamplingParams,
        loop: Any = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the scoring of a prompt's own tokens, all but the first; as `submit`, but with one output.

        Args:
            params: of the prompt's request, only to validate them. `max_tokens` may be 0.

        Raises:
            RequestError, QueueFull, EngineStopped: as `submit`.
        """
        check_params(replace(params, max_tokens=1) if params.max_tokens == 0 else params, self._arch.vocab_size)
        ids = self._ids_of("prompt", prompt)
        check_room("prompt", len(ids), self.max_model_len, self._cache_tokens)
        generation = Generation(ids, None, caller=caller)
        task = Scoring(generation, 0, ids[:1], ids[1:])
        return self._queue(generation, [(task.seq, task)], loop, adapter, params.cache_salt)

    def submit_embedding(
        self,
        prompt: str | Ids[int],
        pooling: Pool = "mean",
        loop: Any = None,
        caller: Caller = ANYONE,
        adapter: str | None = None,
    ) -> Generation:
        """Queue the embedding of a prompt; as `submit`, but with one output.

        Raises:
            RequestError, QueueFull, EngineStopped: as `submit`.
        """
        if pooling not in ("mean", "last"):
            raise RequestError("pooling", f"pooling must be 'mean' or 'last', not {pooling!r}")
        ids = self._ids_of("prompt", prompt)
        check_room("prompt", len(ids), self.max_model_len, self._cache_tokens)
        generation = Generation(ids, None, caller=caller)
        task = Pooling(generation, ids, pooling)
        return self._queue(generation, [(task.seq, task)], loop, adapter)

    def _queue(
        self, generation: Generation, members: list[Member], loop: Any, adapter: str | None, cache_salt: str = ""
    ) -> Generation:
        """Admit a request and queue it on the least busy DP rank."""
        generation.loop = loop
        generation.cache_salts = self.config.prefix_cache_of(generation.caller.name), cache_salt
        with self._places:
            for rank in self.loops:  # once one has failed, the others only finish their requests
                rank.check_open()
            if adapter is not None:
                generation.adapter = self.adapters.get(adapter)
            prompt = len(generation.prompt_ids)
            tokens = prompt + sum(len(seq.tokens) - prompt for seq, _ in members)  # scored suffixes add more
            generation.usage = self.admission.admit(generation.caller, len(members), tokens)
            generation.engine = min(self.loops, key=lambda loop: loop.open)
            generation.times.queued = time.monotonic_ns()
            generation.engine.submit(members)
        return generation

    def load_adapter(self, name: str, location: str) -> None:
        """Load a LoRA adapter while the engine runs; `submit` takes its name once this returns.

        Args:
            location: a folder in PEFT's layout, a hub id or an fsspec URL.

        Raises:
            RequestError: the name is taken, or no place is free.
            CheckpointError: it cannot be read, or does not fit the model.
            EngineStopped: the engine has ended.
        """
        config, arch = self.config, self._arch
        adapter = self.adapters.take_place(name, location)
        try:
            dtype = np.dtype(config.dtype)
            if config.tiny:
                layers = stack.drawn(arch, self._heads, dtype, config.max_adapter_rank, zlib.crc32(name.encode()))
            else:
                found = PeftAdapter.open(location, arch, config.max_adapter_rank, config.model, config.model_roots)
                layers = found.layers(self._heads, config.max_adapter_rank, dtype)
            adapter.key = stack.digest(layers)
            for done in [loop.change_adapter(adapter.place, layers) for loop in self.loops]:
                done.result()
        except BaseException:
            self.adapters.give_back(adapter)
            raise
        self.adapters.ready(adapter)

    def unload_adapter(self, name: str) -> None:
        """Refuse an adapter's name from now on, and wait until its requests have ended. Its place is empty then.

        Raises:
            UnknownAdapter: no adapter has that name.
            EngineStopped: the engine has ended.
        """
        with self._places:  # a request that has got the adapter is queued before the loops are asked
            adapter = self.adapters.retire(name)
        empty = [None] * self._arch.num_layers
        for done in [loop.change_adapter(adapter.place, empty) for loop in self.loops]:
            done.result()
        self.adapters.give_back(adapter)

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
        return EngineStats.together([loop.stats() for loop in self.loops])

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when a loop is dead or one step has taken longer than the deadline."""
        for loop in self.loops:
            loop.check(step_deadline_s)

    def lose_stuck(self, step_deadline_s: float) -> None:
        """End the requests of each loop that `check` finds stuck, for their readers. One that goes on is as before."""
        for loop in self.loops:
            try:
                loop.check(step_deadline_s)
            except EngineStopped as stopped:
                loop.lose(str(stopped))

    @property
    def busy(self) -> bool:
        """Whether requests are open."""
        return any(loop.open for loop in self.loops)

    def shutdown(self) -> None:
        """Stop the loops. Open requests fail with an error that says so."""
        for loop in self.loops:
            loop.shutdown()
        self._grammars.close()

    @property
    def embedding_size(self) -> int:
        """Length of an embedding vector."""
        return self._arch.hidden_size

    @property
    def _cache_tokens(self) -> int:
        """Tokens that every DP rank's KV cache can hold."""
        return (min(loop.executor.pages for loop in self.loops) - 1) * self.config.page_size

    def token_limit(self, field: str) -> TokenLimit:
        """What no text of a request may exceed; with room for an answer, a prompt must be shorter still."""
        cache = self._cache_tokens + 1  # the last token of a scored suffix takes none of it
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
        ids = list(token_ids)
        if not all(isinstance(token, int) and 0 <= token < self._arch.vocab_size for token in ids):
            raise RequestError(field, f"{field}: token ids must be integers from 0 to {self._arch.vocab_size - 1}")
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


def _allocate_and_compile(executors: Ids[Executor[Any]], calibration: list[int]) -> None:
    """Allocate the KV caches one by one, each from the memory still free, then compile on all DP ranks at once."""
    for executor in executors:
        executor.make_cache(calibration)
    with ThreadPoolExecutor(len(executors)) as pool:
        list(pool.map(lambda executor: executor.warm_up(), executors))


def _load_tokenizer(model: Model) -> tuple[ModelTokenizer, Grammars]:
    tokenizer = model.tokenizer()
    tokenizer.warm_up()
    grammars = Grammars(tokenizer, model.arch.vocab_size, _ends(model, tokenizer))
    grammars.warm_up()
    return tokenizer, grammars


def _ends(model: Model, tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """The tokens that end an answer: those of the model's files, and the one of its tokenizer, as vLLM has it."""
    ends, own = model.arch.eos_token_ids, tokenizer.eos_token_id
    if own is None or own in ends:
        return ends
    if own >= model.arch.vocab_size:
        log.warning(
            "the tokenizer's eos token %d is not among the model's %d tokens: ignored", own, model.arch.vocab_size
        )
        return ends
    return (*ends, own)
