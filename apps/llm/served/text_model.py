"""A served language model: the asynchronous interface of its engine that the HTTP dialects use."""

import asyncio
import copy
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.llm.api import CALLER, EngineStats, Pool, QueueFull
from apps.llm.served.metrics import LanguageMetrics, exposition
from apps.llm.served.text_stream import TextStream
from apps.llm.served.texts import RequestTexts
from apps.llm.served.tracing import tracing
from apps.llm.text.generation import Generation
from apps.llm.text.tokenizer.limits import check_copies, check_suffixes
from apps.llm.text_api import Output, PromptToken, SamplingParams
from apps.serving.model_roots import HUB, is_hub_id, permitted
from apps.serving.stuck import StuckWatch

if TYPE_CHECKING:
    from apps.llm.text import Engine


class TextModel:
    """One model and its engine. Methods raise EngineError: RequestError (PromptTooLong), QueueFull or EngineStopped.

    Requests belong to the current task's CALLER.

    Args:
        metrics: what this process counts.
    """

    def __init__(
        self,
        name: str,
        engine: "Engine",
        step_deadline_s: float,
        metrics: type[LanguageMetrics] = LanguageMetrics,
    ):
        self.name, self.created = name, int(time.time())
        self.max_model_len = engine.max_model_len
        """Tokens of prompt and answer together."""
        self.embedding_size = engine.capabilities.embedding_size
        """Numbers in an embedding."""
        self.sampling_defaults = engine.sampling_defaults
        """The model's own, for what a request does not name."""
        self.max_batch_size = engine.capabilities.max_batch_size
        """Sequences that are computed at the same time."""
        self._engine, self._step_deadline_s = engine, step_deadline_s
        self._watch = StuckWatch(
            self.check, lambda: engine.lose_stuck(step_deadline_s), lambda: engine.busy, step_deadline_s
        )
        self.texts = RequestTexts(engine)
        """Tokenizes what requests send."""
        self._adapter: str | None = None
        self._metrics = metrics(name, engine.callers)
        self.tracing = tracing(name)
        """Makes the spans of requests; None if they are not traced."""

    def adapter_named(self, name: str) -> str | None:
        """The adapter that `name` or `model:name` stands for; None if there is none."""
        own = self._own(name)
        return own if any(adapter.name == own for adapter in self._engine.adapters()) else None

    def _own(self, name: str) -> str:
        return name.removeprefix(f"{self.name}:")

    def with_adapter(self, adapter: str, name: str) -> "TextModel":
        """The model with a LoRA adapter, under the name that a request gave it."""
        under = copy.copy(self)
        under.name, under._adapter = name, adapter
        return under

    def readable(self, location: str) -> str | None:
        """What `load_adapter` may read where a caller names it; None: no hub id, not below `model_roots`, and not of
        the config."""
        config, name = self._engine.config, location.removeprefix(HUB)
        if location in config.adapters.values():
            return location
        return HUB + name if is_hub_id(name) else permitted(location, config.model_roots or ())

    async def load_adapter(self, name: str, location: str) -> None:
        """See `Engine.load_adapter`. Reading takes seconds; other requests go on."""
        await asyncio.to_thread(self._engine.load_adapter, name, location)

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`. Returns when its requests have ended."""
        await asyncio.to_thread(self._engine.unload_adapter, name)

    async def submit(self, params: SamplingParams, *prompts: str | Sequence[int]) -> "TextStream":
        """The answers to one prompt or several; one that is refused takes the others with it."""
        began = time.monotonic_ns()
        submitted: list[Generation] = []
        try:
            encoded = await self.texts.prompts(prompts)
            check_copies(encoded, params.n)
            self._engine.admission.check_size(CALLER.get(), len(encoded), params.n)
            for prompt in encoded:
                submitted.append(await self._submit(prompt, params))
        except BaseException as error:
            for generation in submitted:
                generation.abort()
            if self.tracing is not None:
                self.tracing.end(began, submitted, error=error, params=params)
            raise
        self._watch.look()
        return TextStream(submitted, self._metrics, began, self.tracing)

    async def _submit(self, prompt: Sequence[int], params: SamplingParams) -> Generation:
        loop = asyncio.get_running_loop()
        submitted = self._engine.submit(prompt, params, loop, CALLER.get(), self._adapter, wait=False)
        # Compiling a schema can take long. If the client leaves, that cancels it.
        if submitted.queued.done():
            submitted.queued.result()
        else:
            await asyncio.wrap_future(submitted.queued)
        return submitted

    async def score(self, prefix: str | Sequence[int], suffixes: Sequence[str | Sequence[int]]) -> list[list[float]]:
        """Log probability of each token of each suffix, directly after the prefix. Cancelling aborts the request.

        A prefix is encoded like a prompt; a suffix separately, without special tokens, so no token spans the boundary.
        """
        check_suffixes(suffixes)
        (before,) = await self.texts.prompts([prefix], [self._engine.prompts.limit("prefix")])
        limits = [self._engine.prompts.limit("suffix")] * len(suffixes)
        after = await self.texts.prompts(suffixes, limits, special=False)
        submitted = self._engine.submit_score(before, after, asyncio.get_running_loop(), CALLER.get(), self._adapter)
        self._watch.look()
        outputs = await _whole(submitted)
        outputs.sort(key=lambda output: output.index)
        return [[score.logprob for score in output.scores] for output in outputs]

    async def prompt_tokens(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[PromptToken]]:
        """Score each token of each prompt after those before it. Cancelling aborts the requests.

        Args:
            params: of the request; see `Engine.submit_prompt_scores`.
        """
        loop = asyncio.get_running_loop()
        open_: list[Generation] = []
        try:
            for prompt in prompts:
                open_.append(self._engine.submit_prompt_scores(prompt, params, loop, CALLER.get(), self._adapter))
            self._watch.look()
            read = [(await _whole(generation))[0].scores for generation in open_]
        finally:
            for generation in open_:
                generation.abort()
        return await self.texts.scored(prompts, read)

    async def embed(self, prompts: Sequence[str | Sequence[int]], pooling: Pool | None = None) -> list[np.ndarray]:
        """A vector of length 1 for each prompt, `[embedding_size]` float32: mean or last hidden state, None: the
        model's own choice. Queues as `_outputs` does."""
        how, loop = pooling or self._engine.pooling, asyncio.get_running_loop()
        ids = await self.texts.prompts(prompts)
        submit = self._engine.submit_embedding
        outputs = await self._outputs(ids, lambda ids: submit(ids, how, loop, CALLER.get(), self._adapter))
        return [np.asarray(output.embedding) for output in outputs]

    def judgement(self, query: str, document: str, instruction: str | None) -> str | None:
        """The prompt by which a reranker judges a document, with special tokens as text; None if the model is none."""
        reranker = self._engine.reranker
        return None if reranker is None else reranker.prompt(query, document, instruction)

    async def judged(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """The probability of yes, against no, after each prompt of a reranker. Queues as `_outputs` does.

        All are read twice: the second time, all but the last page is in the prefix cache.
        """
        reranker, loop = self._engine.reranker, asyncio.get_running_loop()
        assert reranker is not None
        submit, logprobs = self._engine.submit_score, []
        for token in (reranker.yes, reranker.no):
            answer = [[token]]
            outputs = await self._outputs(prompts, lambda p: submit(p, answer, loop, CALLER.get(), self._adapter))  # noqa: B023
            logprobs.append([output.scores[0].logprob for output in outputs])
        return [0.5 + 0.5 * math.tanh((yes - no) / 2) for yes, no in zip(*logprobs, strict=True)]

    async def _outputs(
        self, prompts: Sequence[Sequence[int]], submit: Callable[[Sequence[int]], Generation]
    ) -> list[Output]:
        """The only output of each prompt's request.

        A long list of prompts does not by itself cause a 429: QueueFull is raised only for the first prompt, the others
        wait for room. Cancelling aborts the requests.
        """
        at_once = self._engine.config.max_batch_size
        open_: deque[Generation] = deque()
        began, submitted, error = time.monotonic_ns(), list[Generation](), None
        read: list[Output] = []

        async def read_one() -> None:
            read.extend(await _whole(open_[0]))
            open_.popleft()

        try:
            for prompt in prompts:
                while len(open_) >= at_once:
                    await read_one()
                while True:
                    try:
                        open_.append(submit(prompt))
                        self._watch.look()
                        if self.tracing is not None:
                            submitted.append(open_[-1])
                        break
                    except QueueFull:
                        if not open_ and not read:
                            raise
                        await (read_one() if open_ else asyncio.sleep(0.02))
            while open_:
                await read_one()
        except BaseException as failure:
            error = failure
            raise
        finally:
            for generation in open_:
                generation.abort()
            if self.tracing is not None:
                self.tracing.end(began, submitted, error=error)
        return read

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def exposition(self) -> bytes:
        """The load in Prometheus' text format, under vLLM's names."""
        config, adapters = self._engine.config, [adapter.name for adapter in self._engine.adapters()]
        return exposition(self.name, self.stats(), config.page_size, adapters, config.adapter_capacity)

    def tokenizer_info(self) -> dict[str, Any]:
        """The tokenizer's config and chat template."""
        return self._engine.tokenizer.info()

    def cards(self) -> list[dict[str, Any]]:
        """The entries of the model and, as vLLM has them, of its adapters in OpenAI's list of models.

        Unlike vLLM's, `root` is a name: where a file lies on the server is no client's business.
        """

        def card(name: str, created: int) -> dict[str, Any]:
            facts = {"id": name, "object": "model", "created": created, "owned_by": "podslice"}
            return facts | {"max_model_len": self.max_model_len}

        adapters = self._engine.adapters()
        return [card(self.name, self.created)] + [
            card(adapter.name, adapter.created) | {"root": adapter.name, "parent": self.name} for adapter in adapters
        ]

    def report(self) -> dict[str, Any]:
        return asdict(self.stats())

    @property
    def busy(self) -> bool:
        """Whether requests are open."""
        return self._engine.busy

    def check(self) -> None:
        """Raises EngineStopped if the engine cannot answer."""
        self._engine.check(self._step_deadline_s)

    def shutdown(self) -> None:
        self._engine.shutdown()
        if self.tracing is not None:
            self.tracing.shutdown()

    async def report_forever(self) -> None:
        await self._metrics.publish_forever(self.stats)


async def _whole(generation: Generation) -> list[Output]:
    """All outputs. Aborts the request if cancelled. Raises EngineStopped."""
    outputs: list[Output] = []
    try:
        async for output in generation:
            output.raise_failure()
            outputs.append(output)
    finally:
        generation.abort()
    return outputs
