"""`VllmEngine`: a token engine over a `vllm serve` that this process has started."""

import json
from collections.abc import Sequence as Ids
from concurrent.futures import Future
from typing import Any

from apps.llm.api import (
    AdapterInfo,
    CacheNews,
    Capabilities,
    EngineStats,
    EngineStopped,
    RequestError,
    Sink,
    TokenRequest,
    UnknownAdapter,
)
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.engine.interface import Vocabulary
from apps.llm.engines.vllm import metrics, tokens
from apps.llm.engines.vllm.cache import BlockNames, KVEventReader
from apps.llm.engines.vllm.model import ServedModel
from apps.llm.engines.vllm.processes import LocalProcess, VllmProcess
from apps.llm.page_names import model_root
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

NO_ADAPTERS = "adapters are not served by engine='vllm'"


class VllmEngine:
    """A `TokenEngine` whose tokens vLLM computes. Make one with `VllmEngine.load`.

    Its draws are vLLM's: an answer that goes on elsewhere is a likely one, but not the one that it would have been.
    """

    def __init__(self, config: EngineConfig, model: ServedModel, vocabulary: Vocabulary, process: VllmProcess):
        """Wait until vLLM answers. Takes minutes; its log is this one's. Raises RuntimeError when it ends before."""
        self._process = process
        self._client, self._events = process.client(), None
        self._grammars = Grammars(vocabulary.fast, model.vocab_size, vocabulary.eos_token_ids)
        self._ends = vocabulary.eos_token_ids
        self._closing = False
        try:
            found = self._client.wait_ready(lambda: process.ended)
            self._size = found.cache
            self._seeded = self._client.try_requests(self._ends)
        except BaseException as error:
            how = process.ended
            self._client.close()
            process.close()
            if how is not None and isinstance(error, RuntimeError):
                raise RuntimeError(how) from error  # with its last words
            raise
        digest = model.digest(config) + json.dumps(config.vllm_args, sort_keys=True).encode()
        self.capabilities = Capabilities(
            vocab_size=model.vocab_size,
            max_model_len=found.max_model_len,
            cache_tokens=self._size.blocks * self._size.block_size,
            max_batch_size=config.max_batch_size,
            page_size=self._size.block_size,
            embedding_size=model.hidden_size,
            eos_token_ids=self._ends,
            special_tokens=self._grammars.special_tokens(),
            adapters=0,
            page_root=model_root(digest, self._size.block_size, ("vllm", config.dtype)),
            resumes_exactly=False,
            continues_held=False,
        )
        self._names = BlockNames(self.capabilities.page_root, self._size.block_size)
        if process.events is not None:
            self._events = KVEventReader(process.events, self._names, listen=process.listens)

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        model: ServedModel,
        vocabulary: Vocabulary,
        process: VllmProcess | None = None,
        slice: TpuSlice | None = None,
    ) -> "VllmEngine":
        """Wait until vLLM answers.

        Args:
            process: one that has been started; default: one on this host.
            slice: the TPU slice of this host, if any.

        Raises:
            FileNotFoundError: there is no vLLM here.
            RuntimeError: it ended; the text has its last words.
        """
        if process is None:
            process = LocalProcess(config, model, None if slice is None else slice.chips)
        return cls(config, model, vocabulary, process)

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, requests: Ids[TokenRequest], sink: Sink) -> "Future[None]":
        """See `TokenEngine.submit`."""
        self._check_open()
        for request in requests:
            tokens.check(request)
            if request.adapter is not None:
                raise UnknownAdapter(request.adapter.hex())
            if request.answer_ids and (why := self.capabilities.cannot_continue(request)):
                raise RequestError("answer_ids", why)
        queued: Future[None] = Future()
        grammar, caller = requests[0].grammar, requests[0].caller
        if grammar is None:
            self._client.begin(requests, sink, self._body)
            queued.set_result(None)
            return queued
        # Compiled here too: its errors name the field, and come before the answer.
        compiling: Future[Any] = self._grammars.matchers(grammar, 1, (caller.name, caller.address))
        queued.add_done_callback(lambda queued: queued.cancelled() and compiling.cancel())

        def compiled(done: "Future[Any]") -> None:
            if not queued.set_running_or_notify_cancel():
                return
            try:
                done.result()
                self._client.begin(requests, sink, self._body)
            except BaseException as error:
                queued.set_exception(error)
            else:
                queued.set_result(None)

        compiling.add_done_callback(compiled)
        return queued

    def _body(self, request: TokenRequest) -> dict[str, Any]:
        if request.suffix is not None:
            return tokens.scoring(request)
        return tokens.completion(request, self._ends, self._seeded)

    def abort(self, ids: Ids[int]) -> None:
        """See `TokenEngine.abort`."""
        self._client.abort(ids)

    # -- adapters -----------------------------------------------------------------------------------------------

    def adapters(self) -> list[AdapterInfo]:
        """None."""
        return []

    def load_adapter(self, name: str, location: str) -> AdapterInfo:
        """Raises RequestError: there is no place for one."""
        raise RequestError("lora_name", NO_ADAPTERS)

    def unload_adapter(self, name: str) -> None:
        """Raises UnknownAdapter."""
        raise UnknownAdapter(name)

    # -- health -------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        client = self._client
        return metrics.stats(client.samples, self._size, client.running, client.open - client.running, client.silent_s)

    def cache_news(self, since: Ids[int] = ()) -> list[CacheNews]:
        """See `TokenEngine.cache_news`."""
        return [self._names.log.since(number) for number in since or [0]]

    @property
    def busy(self) -> bool:
        """Whether requests are open."""
        return self._client.open > 0

    def awaits(self) -> None:
        """Nothing: see `TokenEngine.awaits`."""

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when vLLM has ended, does not answer, or no open request has got a token in time."""
        self._check_open()
        if (silent := self._client.silent_s) > step_deadline_s:
            raise EngineStopped(f"vLLM has sent nothing for {silent:.0f} s (deadline {step_deadline_s:.0f} s)")
        if self._client.unhealthy:
            raise EngineStopped(f"vLLM is not healthy: {self._client.unhealthy}")

    def lose_stuck(self, step_deadline_s: float) -> None:
        """See `TokenEngine.lose_stuck`."""
        try:
            self.check(step_deadline_s)
        except EngineStopped as stopped:
            self._client.lose(str(stopped))

    def shutdown(self) -> None:
        """See `TokenEngine.shutdown`. Ends vLLM."""
        self._closing = True
        self._client.lose("the engine was shut down")
        self._client.close()
        if self._events is not None:
            self._events.close()
        self._process.close()
        self._grammars.close()

    def _check_open(self) -> None:
        if self._closing:
            raise EngineStopped("the engine is shutting down")
        if (how := self._process.ended) is not None:
            raise EngineStopped(how)
