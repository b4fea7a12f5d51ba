from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specray.observability.traces import Tracer
from specray.serve.request_span import RequestSpan

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider)


def request(**headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw})


def only(exporter: InMemorySpanExporter) -> Any:
    (span,) = exporter.get_finished_spans()
    return span


def test_it_continues_the_clients_trace_and_is_passed_on(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    with RequestSpan(tracer, request(traceparent=PARENT, accept="*/*"), "chat") as span:
        span.note(SimpleNamespace())
        forwarded = span.forwarded

    ended = only(exporter)
    assert ended.parent.span_id == 0xB7AD6B7169203331
    assert span.traceparent.startswith(f"00-{TRACE_ID}-{ended.context.span_id:016x}")
    assert forwarded is not None
    assert forwarded.headers.getlist("traceparent") == [span.traceparent]
    assert forwarded.headers["accept"] == "*/*"
    assert ended.attributes["specray.method"] == "chat"
    assert ended.attributes["specray.responses"] == 1
    assert ended.status.description is None


def test_without_a_client_s_span_it_is_a_root(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    with RequestSpan(tracer, None, "completions") as span:
        assert span.forwarded is None

    assert only(exporter).parent is None


def test_an_error_in_place_of_an_answer_marks_it(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    with RequestSpan(tracer, request(), "chat") as span:
        span.note(SimpleNamespace(error=SimpleNamespace(message="too long")))

    assert only(exporter).status.description == "too long"


def test_an_exception_marks_it_and_passes(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="broken"), RequestSpan(tracer, request(), "chat"):
        raise ValueError("broken")

    assert only(exporter).status.description == "ValueError: broken"


def test_a_client_that_leaves_is_no_error(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(GeneratorExit), RequestSpan(tracer, request(), "chat"):
        raise GeneratorExit

    assert only(exporter).status.description is None


def test_without_a_tracer_the_request_stays_as_it_is() -> None:
    given = request(traceparent=PARENT)
    with RequestSpan(None, given, "chat") as span:
        assert span.traceparent == ""
        assert span.forwarded is given
