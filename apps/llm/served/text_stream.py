"""The answers to a submitted request, as dialects read them."""

import time
from collections.abc import AsyncIterator, Sequence

from apps.llm.api import EngineError
from apps.llm.served.metrics import LanguageMetrics
from apps.llm.served.tracing import Tracing
from apps.llm.text.generation import Generation
from apps.llm.text_api import Output


class TextStream:
    """The answers to a request, with their latencies measured. Call `abort()` to stop reading before the end.

    Args:
        began: when the request reached the model, by `time.monotonic_ns`.
        tracing: gets the request's span; None for none.
    """

    def __init__(
        self, generations: Sequence[Generation], metrics: LanguageMetrics, began: int, tracing: Tracing | None = None
    ):
        self._generations, self._metrics, self._began, self._tracing = generations, metrics, began, tracing
        self._tokens = 0
        self._reasons: list[str] = ["abort"] * sum(generation.n for generation in generations)
        self.prompt_tokens = sum(len(generation.prompt_ids) for generation in generations)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Token ids of the prompts."""
        return [generation.prompt_ids for generation in self._generations]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed again; known from the first output on."""
        return sum(generation.cached_tokens for generation in self._generations)

    async def outputs(self) -> AsyncIterator[list[Output]]:
        """Lists of all outputs that are ready, oldest first, one list a step, until every answer has ended.

        Raises:
            AnswerFailed: the model failed at one of the answers.
            EngineStopped: the engine has failed, or the request was aborted.
        """
        first = last = 0.0  # seconds of the clock; 0: no output yet
        generation, *others = self._generations
        async for outputs in generation.outputs(*others):
            last = time.monotonic()
            if not first:
                first = last
                self._metrics.first_token(generation.caller.name, first - self._began / 1e9)
            for output in outputs:
                if output.finish_reason is not None:
                    self._reasons[output.index] = output.finish_reason
                if (failure := output.failure()) is not None:
                    if output.finish_reason == "error":
                        self._end(failure)
                    raise failure
                self._tokens += len(output.token_ids)
            yield outputs
        self._end()
        answers = len(self._reasons)
        if first and self._tokens > answers:
            self._metrics.observe("tpot", (last - first) / (self._tokens / answers - 1))

    def awaits(self) -> str | None:
        """What the request waits for, if there is nobody to answer it; None: there is somebody."""
        return self._generations[0].awaits()

    def abort(self) -> None:
        """Abort the request; it ends within one step. Harmless after its end."""
        for generation in self._generations:
            generation.abort()
        self._end()

    def _end(self, error: EngineError | None = None) -> None:
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            answer = {
                "gen_ai.usage.output_tokens": self._tokens,
                "gen_ai.response.finish_reasons": tuple(self._reasons),
            }
            tracing.end(self._began, self._generations, answer, error)
