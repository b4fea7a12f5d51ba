import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specray.config import ObservabilityConfig
from specray.observability.journal import Journal, open_journal
from specray.observability.traces import Tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider)


def by_name(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_is_a_span_with_its_phases_and_totals(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    journal = Journal("specray.target", tracer)
    below = journal.begin("key", "r1", PARENT)
    journal.enter("key", "prefill")
    journal.add("key", steps=1)
    journal.enter("key", "decode")
    journal.add("key", steps=1, tokens=3)
    journal.end("key", "finished")

    spans = by_name(exporter)
    whole = spans["specray.target"]
    assert f"{whole.parent.trace_id:032x}-{whole.parent.span_id:016x}" in PARENT
    assert below == f"00-{whole.context.trace_id:032x}-{whole.context.span_id:016x}-01"
    assert dict(whole.attributes) == {
        "specray.request_id": "r1",
        "specray.outcome": "finished",
        "specray.steps": 2,
        "specray.tokens": 3,
    }
    for phase in ("prefill", "decode"):
        assert spans[phase].parent.span_id == whole.context.span_id
    assert spans["prefill"].end_time <= spans["decode"].start_time


def test_two_processes_make_one_tree(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    target, draft = Journal("specray.target", tracer), Journal("specray.draft", tracer)
    traceparent = target.begin(1, "r1", PARENT)
    draft.begin(1, "r1", traceparent)
    draft.end(1, "closed")
    target.end(1, "finished")

    spans = by_name(exporter)
    assert spans["specray.draft"].parent.span_id == spans["specray.target"].context.span_id
    assert spans["specray.draft"].context.trace_id == spans["specray.target"].context.trace_id


def test_an_ended_request_is_a_line_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((10.0, 12.5))
    journal = Journal("specray.draft", is_logging=True, clock=lambda: next(times))
    with caplog.at_level(logging.INFO, "specray"):
        assert journal.begin(7, "r1", PARENT) == PARENT
        journal.enter(7, "prefill")
        journal.add(7, proposals=2)
        journal.end(7, "evicted")

    (record,) = caplog.records
    told = vars(record)
    assert (told["request_id"], told["outcome"], told["proposals"]) == ("r1", "evicted", 2)
    assert told["duration_s"] == 2.5
    assert record.getMessage() == "specray.draft outcome=evicted proposals=2 duration_s=2.5"


def test_switched_off_it_keeps_nothing_and_passes_the_parent_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = open_journal(ObservabilityConfig(), "target", "r")
    with caplog.at_level(logging.DEBUG):
        assert journal.begin(1, "r1", PARENT) == PARENT
        journal.enter(1, "prefill")
        journal.add(1, steps=1)
        journal.end(1, "finished")
        journal.close()

    assert not journal.is_on
    assert not journal._entries
    assert not caplog.records


def test_what_was_never_begun_or_has_ended_is_ignored(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    journal = Journal("specray.draft", tracer, is_logging=True)
    journal.begin(1, "r1", "")
    for _ in range(2):
        journal.enter(2, "prefill")
        journal.add(2, steps=1)
        journal.end(1, "closed")

    assert len(exporter.get_finished_spans()) == 1


def test_begun_twice_it_is_one(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    journal = Journal("specray.target", tracer)
    journal.begin(1, "r1", PARENT)
    journal.begin(1, "r1", PARENT)
    journal.end(1, "finished")

    assert len(exporter.get_finished_spans()) == 1
