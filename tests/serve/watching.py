"""What a running service wrote down about one request: log lines, spans, a timeline."""

import json
from pathlib import Path
from typing import Any

import httpx

from specray.cli import main
from tests.serve.service import MODEL, Service

Line = dict[str, Any]

SPANS = {"specray.request", "specray.target", "prefill", "decode", "specray.draft"}
"""What a request's trace has; a draft that loses the request and reads it anew writes another."""


def ask(service: Service, request_id: str, traceparent: str) -> None:
    """A request that names itself and the span that it is part of."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 1 to 20, separated by commas."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    headers = {"x-request-id": request_id, "traceparent": traceparent}
    reply = httpx.post(f"{service.url}/chat/completions", json=body, headers=headers, timeout=300.0)
    assert reply.status_code == httpx.codes.OK, reply.text


def lines_of(service: Service, role: str, request_id: str) -> list[Line]:
    """The lines about a request in the logs of a role's processes; all lines must be JSON."""
    said = next(line for line in service.lines if line.startswith("logs: "))
    folder = Path(said.split(maxsplit=1)[1])
    written = [line for path in folder.glob(f"{role}*.log") for line in _whole_lines(path)]
    assert written, f"no {role} has written anything in {folder}"
    return [line for line in written if line.get("request_id") == request_id]


def spans_of(folder: Path, trace_id: str) -> list[Line]:
    """The spans of a trace that have ended."""
    spans = [line for path in folder.glob("*.jsonl") for line in _whole_lines(path)]
    return [span for span in spans if span["context"]["trace_id"] == f"0x{trace_id}"]


def exported(timeline: Path, folder: Path, *options: str) -> list[Line]:
    """The events of a trace that `specray trace` makes in the folder."""
    out = folder / "trace.json"
    assert main(["trace", str(timeline), "--out", str(out), *options]) == 0
    events: list[Line] = json.loads(out.read_text())["traceEvents"]
    return events


def tracks_of(events: list[Line]) -> set[str]:
    """The names of a trace's processes and of the tracks in them."""
    return {event["args"]["name"] for event in events if event["ph"] == "M"}


def sessions_of(events: list[Line]) -> set[tuple[str, int, int]]:
    """Whom a trace's events concern: role, process, and number there."""
    named = [event for event in events if event["name"] == "process_name"]
    roles = {event["pid"]: event["args"]["name"] for event in named}
    found = set()
    for event in events:
        facts = {} if event.get("cat") == "wire" else event.get("args", {})
        numbers = {facts.get("session"), *facts.get("sessions", ())} - {None}
        found |= {(roles[event["pid"]], event["pid"], number) for number in numbers}
    return found


def _whole_lines(path: Path) -> list[Line]:
    """Without a last one that is still being written, or whose writer was killed."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
