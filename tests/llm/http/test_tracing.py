"""Spans of requests: of the demo model over HTTP, to a stand-in for an OTLP collector."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry import context, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps.llm.http.app import http_app
from apps.llm.served.text_model import TextModel
from apps.llm.served.tracing import Tracing, tracing
from apps.llm.text_api import SamplingParams
from tests.http_servers import StandInHandler, StandInServer, served
from tests.llm.serve.serving import MODEL, held, wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0.5, "ignore_eos": True}
JSON = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def model(crowded_server: Any) -> TextModel:
    """The model, whose spans the test chooses."""
    return TextModel(MODEL, crowded_server.engine, step_deadline_s=60)


@pytest.fixture
def spans(model: TextModel) -> InMemorySpanExporter:
    """The model's spans, in memory."""
    exporter = InMemorySpanExporter()
    model.tracing = Tracing(MODEL, SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def url(model: TextModel, spans: InMemorySpanExporter) -> Iterator[str]:
    with served(http_app(model)) as url:
        yield url


def finished(spans: InMemorySpanExporter, count: int) -> list[Any]:
    """The spans, once there are so many. A stream's are made after its last byte."""
    return wait_until(lambda: len(found := spans.get_finished_spans()) >= count and found)


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The URL of an OTLP collector over HTTP, and what it received."""
    received: list[ExportTraceServiceRequest] = []

    class Collector(StandInHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            received.append(ExportTraceServiceRequest.FromString(self.body()))
            self.answer()

    with StandInServer(Collector) as server:
        yield server.url, received


@pytest.mark.slow
def test_spans_reach_a_collector(model, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector() as (endpoint, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "chats")
        model.tracing = tracing(MODEL)
        with served(http_app(model)) as url:
            reply = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=HEADERS)
            assert reply.status_code == 200
        model.tracing.shutdown()  # flushes; the engine itself is shared
    (of_resource,) = received[0].resource_spans
    assert ("service.name", "chats") in [(a.key, a.value.string_value) for a in of_resource.resource.attributes]
    spans = {span.name: span for scope in of_resource.scope_spans for span in scope.spans}
    assert spans.keys() == {f"chat {MODEL}", "queue", "prefill", "decode"}
    request = spans[f"chat {MODEL}"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    given = {a.key: a.value for a in request.attributes}
    usage = reply.json()["usage"]
    assert given["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
    assert given["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"] == 4
    assert given["gen_ai.request.temperature"].double_value == 0.5
    assert [v.string_value for v in given["gen_ai.response.finish_reasons"].array_value.values] == ["length"]
    stages = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(stage.parent_span_id == request.span_id for stage in stages)
    times = [request.start_time_unix_nano, *(stage.start_time_unix_nano for stage in stages)]
    assert times == sorted(times) and all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(stages))
    assert stages[-1].end_time_unix_nano <= request.end_time_unix_nano


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_has_a_span(url, spans, stream):
    body = CHAT | {"response_format": JSON, "stream": stream, "n": 2}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    *stages, request = finished(spans, 5)
    assert [span.name for span in stages] == ["compile_grammar", "queue", "prefill", "decode"]
    assert request.parent is None and request.attributes["gen_ai.output.type"] == "json"
    assert request.attributes["gen_ai.request.choice.count"] == 2
    assert len(request.attributes["gen_ai.response.finish_reasons"]) == 2
    assert all(span.start_time <= span.end_time for span in (*stages, request))


def test_operations(url, spans):
    for path, body, operation in (
        ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 1}, "text_completion"),
        ("/v1/messages", {"model": MODEL, "max_tokens": 1, "messages": CHAT["messages"]}, "chat"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 16}, "chat"),
        ("/v1/embeddings", {"input": ["x", "y z"]}, "embeddings"),
    ):
        spans.clear()
        assert httpx.post(f"{url}{path}", json=body).status_code == 200, path
        request = wait_until(lambda: [span for span in spans.get_finished_spans() if MODEL in span.name])[0]
        assert request.name == f"{operation} {MODEL}" and request.attributes["url.path"] == path
    assert len(spans.get_finished_spans()) == 1  # an embedding's prompts have none


def test_a_refused_request_has_a_span_with_the_reason(url, spans):
    reply = httpx.post(f"{url}/v1/completions", json={"prompt": "x" * 100_000}, headers=HEADERS)
    assert reply.status_code == 400
    (request,) = spans.get_finished_spans()
    assert request.attributes["error.type"] == "PromptTooLong"
    assert request.status.description == reply.json()["error"]["message"]
    assert f"{request.context.trace_id:032x}" == TRACE


def test_the_open_stage_of_an_aborted_request_ends_with_it(model, spans, crowded_server):
    async def leave() -> None:
        (await model.submit(SamplingParams(max_tokens=9), "x")).abort()

    with held(crowded_server.engine):
        asyncio.run(leave())
    *stages, request = spans.get_finished_spans()
    assert [span.name for span in stages] in (["queue"], ["queue", "prefill"])
    assert stages[-1].end_time <= request.end_time  # a child does not outlive its parent, whoever ends it
    assert request.attributes["gen_ai.response.finish_reasons"] == ("abort",)


def test_a_span_of_serve_is_the_parent(model, spans):
    outer = trace.SpanContext(int(TRACE, 16), 7, is_remote=True, trace_flags=trace.TraceFlags(1))

    async def ask() -> None:
        context.attach(trace.set_span_in_context(trace.NonRecordingSpan(outer)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(model)), base_url="http://test") as client:
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=HEADERS)).status_code == 200

    asyncio.run(ask())
    assert spans.get_finished_spans()[-1].parent == outer


def test_an_unsampled_request_has_no_spans(url, spans):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
    assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=HEADERS).status_code == 200
    assert {f"{span.context.trace_flags}" for span in finished(spans, 4)} == {"1"}
    assert len(spans.get_finished_spans()) == 4


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true"), ("OTEL_SERVICE_NAME", "x")]
)
def test_off(monkeypatch, name, value):
    if name != "OTEL_SERVICE_NAME":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    assert tracing(MODEL) is None


def test_a_missing_package_is_named(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setattr(logging.getLogger("podslice"), "propagate", True)
    monkeypatch.setattr("apps.llm.served.tracing.entry_points", lambda **of: ())
    assert tracing(MODEL) is None
    # Twice where another test has given the logger a handler of caplog's.
    (message,) = {record.getMessage() for record in caplog.records}
    assert "otlp_proto_grpc" in message and "podslice[otel]" in message
