"""OpenTelemetry spans of a language model's requests, configured by the standard OTEL_ variables.

A request that reaches the engine has one span, with the attributes of the GenAI semantic conventions, and one child for
each stage: compile_grammar, queue, prefill and decode. All are made when the request ends, from the times in
`Generation.times`. Prompts and answers are not in them.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from apps.llm.text.generation import Generation
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.api_keys import Asgi

if TYPE_CHECKING:
    from opentelemetry.context import Context

log = logging.getLogger("podslice")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CHATS = ("/chat/completions", "/messages", "/responses")


class Arrival(NamedTuple):
    """An HTTP request that may reach the engine."""

    path: str
    parent: "Context"


ARRIVAL: ContextVar[Arrival | None] = ContextVar("ARRIVAL", default=None)
"""The current task's HTTP request; set only where spans are made."""


class Traced:
    """ASGI middleware: sets ARRIVAL. The parent is Ray Serve's span where its tracing is on, else `traceparent`'s."""

    def __init__(self, app: Asgi):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            from opentelemetry import context, propagate, trace

            parent = context.get_current()
            if not trace.get_current_span(parent).get_span_context().is_valid:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
                parent = propagate.extract(headers)
            ARRIVAL.set(Arrival(scope["path"], parent))
        await self._app(scope, receive, send)


class Tracing:
    """Makes the spans of one model. Thread-safe; exporting happens in a thread of the SDK's.

    Args:
        processor: an SDK SpanProcessor that takes the spans.
    """

    def __init__(self, model: str, processor: Any):
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "podslice"}))
        self._model, self._provider = model, TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("podslice")

    def end(
        self,
        began: int,
        generations: Sequence[Generation],
        answer: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        """Make the span of a request that has ended.

        Args:
            began: when it reached the model, by `time.monotonic_ns`.
            generations: those that were submitted.
            answer: attributes of the answer.
            error: why it failed or was refused.
            params: the request's, if no generation has them. A request without any is one for embeddings: it may have
                thousands of prompts, so their stages get no spans.
        """
        from opentelemetry import trace

        now, path, parent = time.monotonic_ns(), "", None
        offset = time.time_ns() - now  # spans have Unix time
        if (arrival := ARRIVAL.get()) is not None:
            path, parent = arrival
        params = params or (generations[0].params if generations else None)
        operation = "embeddings" if params is None else "chat" if path.endswith(CHATS) else "text_completion"
        given: dict[str, Any] = {"url.path": path} if path else {}
        given |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "podslice"}
        given |= {"gen_ai.request.model": self._model, "gen_ai.response.model": self._model}
        given |= _of_params(params) if params is not None else {}
        given["gen_ai.usage.input_tokens"] = sum(len(generation.prompt_ids) for generation in generations)
        given["gen_ai.usage.cache_read.input_tokens"] = sum(generation.cached_tokens for generation in generations)
        name, kind = f"{operation} {self._model}", trace.SpanKind.SERVER
        span = self._tracer.start_span(name, parent, kind, given | dict(answer or {}), start_time=began + offset)
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, str(error))
        if params is not None and span.is_recording():
            inside = trace.set_span_in_context(span)
            for generation in generations:
                for stage, start, stop in _stages(generation, now):
                    self._tracer.start_span(stage, inside, start_time=start + offset).end(stop + offset)
        span.end(now + offset)

    def shutdown(self) -> None:
        """Export what is left, and stop."""
        self._provider.shutdown()


def _stages(generation: Generation, now: int) -> Iterator[tuple[str, int, int]]:
    """The stages that a request has begun: (name, start, stop). The last one of a request cut short ends with it."""
    times = generation.times
    if times.grammar is not None:
        yield "compile_grammar", *times.grammar
    ended = times.ended or now
    marks = (times.queued, times.left_queue, times.first_token)
    for stage, start, stop in zip(("queue", "prefill", "decode"), marks, (*marks[1:], ended)):
        if start and start <= now:  # the engine may go on meanwhile, and no stage outlives its request
            yield stage, start, min(max(start, stop or ended), now)


def _of_params(params: SamplingParams) -> dict[str, Any]:
    fields = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or None,
        "frequency_penalty": params.frequency_penalty or None,
        "presence_penalty": params.presence_penalty or None,
        "seed": params.seed,
        "stop_sequences": tuple(params.stop) or None,
        "choice.count": params.n if params.n != 1 else None,
    }
    given = {f"gen_ai.request.{name}": value for name, value in fields.items() if value is not None}
    return given | ({} if params.json_schema is None else {"gen_ai.output.type": "json"})


def tracing(model: str) -> Tracing | None:
    """The model's spans; None unless OTEL_TRACES_EXPORTER or an OTLP endpoint is set in the environment.

    Nothing of OpenTelemetry is imported without them. If they ask for what is not installed, a warning says so.
    """
    environ = os.environ
    name = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environ.get, ENDPOINTS)) else "none")
    if name == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if name == "otlp":
        protocol = next(filter(None, map(environ.get, PROTOCOLS)), "http/protobuf")
        name = f"otlp_proto_{protocol.partition('/')[0]}"
    if not (found := tuple(entry_points(group="opentelemetry_traces_exporter", name=name))):
        log.warning(
            "no traces: the exporter %s, which the OTEL_ variables ask for, is not installed; "
            "pip install 'podslice[otel]' brings otlp_proto_http",
            name,
        )
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Tracing(model, BatchSpanProcessor(found[0].load()()))
