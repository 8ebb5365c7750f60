"""The engine on this replica's devices: queues requests, runs the loops, hands tokens on.

The life of a request:
1. `submit`, in the caller's thread, makes its sequence and what that must follow. A grammar is compiled first.
2. A DP rank takes it, of several the one with the least to compute for it: see `apps.llm.placement`.
3. That rank's loop, in its own thread, schedules it into steps until it ends; see `loop`.

What is scored or embedded takes the same path; see `pooling`.
"""

import itertools
import threading
import zlib
from collections.abc import Callable
from collections.abc import Sequence as Ids
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from apps.arrays.program_cache import use_compile_cache
from apps.llm.api import (
    AdapterInfo,
    CacheNews,
    Capabilities,
    EngineStats,
    EngineStopped,
    Sink,
    TokenRequest,
)
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.loaded import Adapter, LoadedAdapters
from apps.llm.engine.adapters.peft import PeftAdapter
from apps.llm.engine.execute import layout_choice, stored
from apps.llm.engine.execute.local import LocalDevices
from apps.llm.engine.executor_protocol import ExecutorProvider
from apps.llm.engine.grammar.matchers import AnyMatcher, Grammars
from apps.llm.engine.images.encoding import EncodingSizes
from apps.llm.engine.images.placed import placed
from apps.llm.engine.interface import Vocabulary
from apps.llm.engine.kv_events import publishers
from apps.llm.engine.loading import allocate_and_compile, calibration_tokens, read_vocabulary
from apps.llm.engine.model.split import Split
from apps.llm.engine.schedule.answer import Answer
from apps.llm.engine.schedule.loop import Loop
from apps.llm.engine.schedule.pooling import prompt_task, tokens_of
from apps.llm.engine.schedule.rank_choice import RankChoice
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.speculation.choice import TurnTimes
from apps.llm.engine.speculation.drafter import Drafter, grams
from apps.llm.engine.weights.digest import model_digest
from apps.llm.engine.weights.model import Model
from apps.llm.page_names import model_root, page_root
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice


class JaxEngine:
    """A `TokenEngine`: a loaded model and its loops, one for each DP rank. Make one with `JaxEngine.load`."""

    def __init__(
        self,
        config: EngineConfig,
        loops: list[Loop[Any]],
        grammars: Grammars,
        max_model_len: int,
        split: Split,
        digest: bytes = b"",
    ):
        self.config, self.loops = config, loops
        self._grammars, self._split = grammars, split  # split: of each DP rank
        self._arch = replace(loops[0].executor.arch, eos_token_ids=grammars.eos_token_ids)
        self._adapters = LoadedAdapters(config.adapter_capacity)
        self._arrivals = itertools.count()
        self._submit_lock = threading.Lock()  # held while choosing a rank and queueing on it
        self._ranks = RankChoice(loops, config)
        self.capabilities = Capabilities(
            vocab_size=self._arch.vocab_size,
            max_model_len=max_model_len,
            cache_tokens=(min(loop.executor.pages for loop in loops) - 1) * config.page_size,
            max_batch_size=config.max_batch_size,
            page_size=config.page_size,
            embedding_size=self._arch.hidden_size,
            eos_token_ids=grammars.eos_token_ids,
            special_tokens=grammars.special_tokens(),
            adapters=config.adapter_capacity,
            image_tokens=config.image_tokens,
            max_image_tokens=config.max_image_tokens if config.image_tokens else 0,
            page_root=model_root(
                digest, config.page_size, (config.dtype, config.quantize_weights, config.quantize_kv_cache)
            ),
            # Where kernels are chosen by the number of rows, steps of other sizes round in other ways.
            resumes_exactly=all(loop.executor.skips_padding for loop in loops),
        )
        self._publishers = publishers(config, [loop.page_feed for loop in loops], self._adapters.name_of)

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        vocabulary: Callable[[Model], Vocabulary],
        provider: ExecutorProvider | None = None,
        slice: TpuSlice | None = None,
    ) -> "JaxEngine":
        """Read the model, compile every step and start the loops. Takes seconds to minutes; shows progress.

        Args:
            vocabulary: opens the model's tokenizer, in a thread beside the loading of the weights.
            provider: where the model's devices are; default: those that this process sees.
            slice: the TPU slice that the devices belong to, if any, for choosing a layout.

        Raises:
            CheckpointError, UnsupportedModel: the model cannot be read, or its family is not supported.
            MemoryError: the KV cache has no room for one sequence of the longest length.
            ValueError: the config does not fit the model or the machine.
        """
        use_compile_cache(config.compile_cache)
        # On a multi-host slice each host reads its own part; here the config and the tokenizer are enough.
        model = Model.open(config, weights=provider is None)
        if provider is None:
            stored.try_sets(config, model)
        provider = provider or LocalDevices()
        config = model.settle(config)
        max_len = model.max_len(config)
        chosen = layout_choice.choose(config, model.arch, provider.devices(config), slice)
        model = model.at_size(config, chosen.tensor)
        of_rank = chosen.of_dp_rank(config)
        EncodingSizes.of(of_rank, model.arch)  # before weights are read: is there room for an image?
        with ThreadPoolExecutor(1) as pool:  # the tokenizer's imports and tables take as long as the weights
            reading = pool.submit(read_vocabulary, model, vocabulary)
            executors = provider.load(config, model, chosen)
            try:
                calibration = calibration_tokens(config, reading.result()[0], model.arch.vocab_size)
                allocate_and_compile(executors, calibration)
                drafts = config.speculation == "ngram"
                timings = [TurnTimes.measured(executor, of_rank) if drafts else None for executor in executors]
                _, grammars = reading.result()
            except BaseException:
                for executor in executors:
                    executor.close()
                raise
        loops = [Loop(of_rank, executor, times) for executor, times in zip(executors, timings)]
        split = model.arch.split(chosen.tensor, config.expert_parallel)
        try:
            return cls(config, loops, grammars, max_len, split, model_digest(model))
        except BaseException:
            for loop in loops:
                loop.shutdown()
            raise

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, requests: Ids[TokenRequest], sink: Sink) -> "Future[None]":
        """See `TokenEngine.submit`."""
        queued: Future[None] = Future()
        grammar, caller = requests[0].grammar, requests[0].caller
        if grammar is None:
            self._settle(queued, lambda: self._queue(requests, [None] * len(requests), sink))
            return queued
        compiling: Future[Any] = self._grammars.matchers(grammar, len(requests), (caller.name, caller.address))
        queued.add_done_callback(lambda queued: queued.cancelled() and compiling.cancel())
        compiling.add_done_callback(
            lambda done: self._settle(queued, lambda: self._queue(requests, done.result(), sink))
        )
        return queued

    @staticmethod
    def _settle(queued: "Future[None]", queue: Callable[[], None]) -> None:
        if not queued.set_running_or_notify_cancel():
            return
        try:
            queue()
        except BaseException as error:
            queued.set_exception(error)
        else:
            queued.set_result(None)

    def _queue(self, requests: Ids[TokenRequest], matchers: Ids[AnyMatcher | None], sink: Sink) -> None:
        """Queue requests on a DP rank."""
        drafts = self.config.speculation == "ngram" and requests[0].sampling is not None
        known = grams(requests[0].prompt_ids) if drafts else None
        with self._submit_lock:
            for rank in self.loops:  # once one has failed, the others only finish their requests
                rank.check_open()
            key = requests[0].adapter
            adapter = None if key is None else self._adapters.with_key(key)
            root = page_root(self.capabilities.page_root, key or b"", requests[0].cache_salts)
            members = [
                (*self._member(request, matcher, adapter, root, known), sink)
                for request, matcher in zip(requests, matchers, strict=True)
            ]
            self._ranks.choose([member[0] for member in members]).submit(members)

    def _member(
        self,
        request: TokenRequest,
        matcher: AnyMatcher | None,
        adapter: Adapter | None,
        root: bytes,
        known: Any,
    ) -> tuple[Sequence, Any]:
        sampled = request.sampling is not None
        tokens = [*request.prompt_ids, *request.answer_ids] if sampled else tokens_of(request)
        seq = Sequence(
            request,
            next(self._arrivals),
            request.limit if sampled else len(tokens) + 1,
            tokens,
            len(request.prompt_ids) if sampled else len(tokens),
            adapter=0 if adapter is None else adapter.index,
            images=placed(request, self.capabilities, self._arch, root),
            page_root=root,
        )
        if not sampled:
            return seq, prompt_task(seq)
        answer = Answer(seq, self._arch.vocab_size, self._arch.eos_token_ids, matcher)
        seq.needs_last_token = matcher is not None or bool(answer.words and answer.words.phrases)
        if known is not None and not answer.penalized:  # penalties need token counts, which the device keeps
            seq.drafter = Drafter(request.prompt_ids, known)
        return seq, answer

    def abort(self, ids: Ids[int]) -> None:
        """See `TokenEngine.abort`."""
        for loop in self.loops:
            loop.abort(ids)

    # -- adapters -----------------------------------------------------------------------------------------------

    def adapters(self) -> list[AdapterInfo]:
        """The LoRA adapters that requests can ask for, oldest first."""
        return [adapter.info for adapter in self._adapters.all()]

    def load_adapter(self, name: str, location: str) -> AdapterInfo:
        """See `TokenEngine.load_adapter`."""
        config, arch = self.config, self._arch
        adapter = self._adapters.take_index(name, location)
        try:
            dtype = np.dtype(config.dtype)
            if config.tiny:
                layers = stack.drawn(arch, self._split, dtype, config.max_adapter_rank, zlib.crc32(name.encode()))
            else:
                found = PeftAdapter.open(location, arch, config.max_adapter_rank, config.model, config.model_roots)
                layers = found.layers(self._split, config.max_adapter_rank, dtype)
            adapter.key = stack.digest(layers)
            for done in [loop.change_adapter(adapter.index, layers) for loop in self.loops]:
                done.result()
        except BaseException:
            self._adapters.give_back(adapter)
            raise
        self._adapters.ready(adapter)
        return adapter.info

    def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`. Its index is free when this returns."""
        with self._submit_lock:  # a request that has got the adapter is queued before the loops are asked
            adapter = self._adapters.retire(name)
        empty = [None] * self._arch.num_layers
        for done in [loop.change_adapter(adapter.index, empty) for loop in self.loops]:
            done.result()
        self._adapters.give_back(adapter)

    # -- health -------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        return EngineStats.together([loop.stats() for loop in self.loops])

    def cache_news(self, since: Ids[int] = ()) -> list[CacheNews]:
        """See `TokenEngine.cache_news`."""
        numbers = since or [0] * len(self.loops)
        return [loop.cache_news(number) for loop, number in zip(self.loops, numbers, strict=True)]

    @property
    def busy(self) -> bool:
        """Whether requests are open."""
        return any(loop.open for loop in self.loops)

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when a loop is dead or one step has taken longer than the deadline."""
        for loop in self.loops:
            loop.check(step_deadline_s)

    def awaits(self) -> None:
        """Nothing: see `TokenEngine.awaits`."""

    def lose_stuck(self, step_deadline_s: float) -> None:
        """End the requests of each loop that `check` finds stuck, for their readers. One that goes on is as before."""
        for loop in self.loops:
            try:
                loop.check(step_deadline_s)
            except EngineStopped as stopped:
                loop.lose(str(stopped))

    def shutdown(self) -> None:
        """Stop the loops. Open requests fail with an error that says so."""
        for loop in self.loops:
            loop.shutdown()
        for publisher in self._publishers:
            publisher.close()
        self._grammars.close()
