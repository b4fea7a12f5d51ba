import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry import context, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specray.config import ObservabilityConfig
from specray.errors import StartupError
from specray.observability.traces import Tracer, active_traceparent, make_tracer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def tracer_into(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider)


@pytest.mark.parametrize(
    "faulty", ["", "garbage", f"00-{TRACE_ID}", f"00-{'0' * 32}-{'0' * 16}-01"]
)
def test_without_a_sound_parent_a_span_is_a_root(faulty: str) -> None:
    exporter = InMemorySpanExporter()
    tracer_into(exporter).start("a", faulty).end({})

    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert span.context.trace_id


def test_an_error_marks_the_span() -> None:
    exporter = InMemorySpanExporter()
    tracer_into(exporter).start("a", "").end({"n": 1}, "it broke")

    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert span.status.description == "it broke"
    assert dict(span.attributes or {}) == {"n": 1}


def test_spans_go_to_a_file_of_the_process(tmp_path: Path) -> None:
    config = ObservabilityConfig(traces=f"file:{tmp_path / 'spans'}")
    tracer = make_tracer(config, "draft", "d1")
    assert tracer is not None
    tracer.start("one", f"00-{TRACE_ID}-b7ad6b7169203331-01").end({})
    tracer.start("two", "").end({})
    tracer.close()

    (file,) = (tmp_path / "spans").iterdir()
    assert file.name.startswith("draft-d1-")
    one, two = map(json.loads, file.read_text().splitlines())
    assert (one["name"], one["context"]["trace_id"]) == ("one", f"0x{TRACE_ID}")
    assert two["resource"]["attributes"]["service.name"] == "specray-draft"


@pytest.mark.parametrize(("flags", "num_spans"), [("00", 0), ("01", 1)])
def test_the_clients_decision_holds_whatever_the_ratio(
    flags: str, num_spans: int, tmp_path: Path
) -> None:
    config = ObservabilityConfig(traces=f"file:{tmp_path}", trace_ratio=1e-9)
    tracer = make_tracer(config, "router", "r1")
    assert tracer is not None
    span = tracer.start("a", f"00-{TRACE_ID}-b7ad6b7169203331-{flags}")
    assert span.traceparent.endswith(flags)
    span.end({})
    tracer.close()

    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == num_spans


def test_a_folder_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = ObservabilityConfig(traces=f"file:{tmp_path / 'file'}")
    with pytest.raises(StartupError, match=r"observability\.traces"):
        make_tracer(config, "draft", "d1")


def test_an_endpoint_is_not_asked_before_there_are_spans() -> None:
    tracer = make_tracer(ObservabilityConfig(traces="http://127.0.0.1:1/v1/traces"), "draft", "d")
    assert tracer is not None
    tracer.close()


def test_spans_go_to_a_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        tracer = make_tracer(ObservabilityConfig(traces=endpoint), "router", "r1")
        assert tracer is not None
        tracer.start("one", f"00-{TRACE_ID}-b7ad6b7169203331-01").end({"n": 1})
        tracer.close()
        thread.join()

    ((path, body),) = received
    export = ExportTraceServiceRequest.FromString(body)
    (span,) = export.resource_spans[0].scope_spans[0].spans
    assert (path, span.name, span.trace_id.hex()) == ("/v1/traces", "one", TRACE_ID)


def test_off_there_is_no_tracer_and_nothing_is_imported() -> None:
    code = """
import sys
from specray.config import ObservabilityConfig
from specray.observability.journal import open_journal
open_journal(ObservabilityConfig(), "draft", "d").begin(1, "r", "")
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_span_of_another_tracer_is_the_parent() -> None:
    assert active_traceparent() == ""
    span = TracerProvider().get_tracer("serve").start_span("replica")
    token = context.attach(trace.set_span_in_context(span))
    try:
        found = active_traceparent()
    finally:
        context.detach(token)

    assert found[:53] == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
