"""Spans into a file, one JSON object a line."""

from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class SpanFile(SpanExporter):
    """Appends spans as they end; whoever exports calls it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans, and see that they are there if the process dies next."""
        self._file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        self._file.flush()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()
