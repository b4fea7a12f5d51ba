"""Spans, by OpenTelemetry; nothing of it is imported unless traces are switched on."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specray.config import FILE_PREFIX, ObservabilityConfig
from specray.errors import StartupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

_FLUSH_MS = 1000
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Attributes = Mapping[str, str | int | float | bool]


class Span:
    """Something that takes time, and what it is part of."""

    def __init__(self, tracer: Any, span: Any) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        """The span's name for children anywhere, as W3C writes it."""
        return _traceparent(self._span.get_span_context())

    def child(self, name: str) -> "Span":
        """Begin a part of it."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        return Span(self._tracer, self._tracer.start_span(name, context))

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End it, with what is known by now; an error marks it as failed."""
        self._span.set_attributes(dict(attributes))
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class Tracer:
    """Begins spans of one process. Their provider is ours: Serve and vLLM may have their own."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("specray")

    def start(self, name: str, traceparent: str) -> Span:
        """Begin a span below that of another process; an empty or faulty parent makes a root."""
        return Span(self._tracer, self._tracer.start_span(name, _context(traceparent)))

    def close(self) -> None:
        """Send what has ended, and stop."""
        self._provider.shutdown()


def make_tracer(config: ObservabilityConfig, role: str, instance: str) -> Tracer | None:
    """The tracer of a process, or None if traces are off.

    Args:
        config: where spans go, and what share of requests is traced.
        role: `router`, `front` (a target's, by direct streaming), `target` or `draft`.
        instance: tells replicas of a role apart.

    Raises:
        StartupError: OpenTelemetry is not installed, or the folder can't be written.
    """
    if config.traces is None:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        exporter = _exporter(config.traces, f"{role}-{instance}")
    except (ImportError, OSError) as error:
        raise StartupError(f"observability.traces {config.traces!r}: {error}") from error
    names = {"service.name": f"specray-{role}", "service.instance.id": instance}
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(config.trace_ratio), resource=Resource.create(names)
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_FLUSH_MS))
    return Tracer(provider)


def active_traceparent() -> str:
    """The span that this task runs in, if some other tracer (Ray Serve's own) has begun one."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return _traceparent(context) if context.is_valid else ""


def _traceparent(context: "SpanContext") -> str:
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _exporter(destination: str, file_name: str) -> "SpanExporter":
    if not destination.startswith(FILE_PREFIX):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=destination)
    from specray.observability.span_file import SpanFile

    folder = Path(destination.removeprefix(FILE_PREFIX))
    return SpanFile(folder / f"{file_name}-{os.getpid()}.jsonl")


def _context(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    if (found := _TRACEPARENT.match(traceparent)) is None:
        return Context()
    trace_id, span_id, flags = (int(group, 16) for group in found.groups())
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(parent), Context())
