import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specray.cli import USER_ERROR, main
from specray.wire.timeline import OFF, FileTimeline, open_timeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two steps as a target and a draft wrote them, and a line that was cut off."""
    target = [
        {"name": "process_name", "ph": "M", "args": {"name": "target"}},
        {"name": "commit sent", "ph": "i", "ts": 1000.0, "args": {"at": 9, "added": 1, "depth": 3}},
        {"name": "verify", "ph": "X", "ts": 1500.0, "dur": 50000.0, "args": {"depths": [3]}},
        {"name": "outcome buffered", "ph": "i", "ts": 30000.0, "args": {"at": 11, "tokens": 3}},
        {"name": "outcome buffered", "ph": "i", "ts": 40000.0, "args": {"at": 12, "tokens": 3}},
        {
            "name": "commit sent",
            "ph": "i",
            "ts": 51600.0,
            "args": {"at": 10, "added": 2, "depth": 3},
        },
    ]
    draft = [{"name": "draft ahead", "ph": "X", "ts": 3000.0, "dur": 9000.0, "args": {}}]
    for role, events in (("target", target), ("draft", draft)):
        lines = [json.dumps({"pid": 1, "tid": 0} | event) + "\n" for event in events]
        (tmp_path / f"{role}-1.jsonl").write_text("".join(lines) + '{"na')
    return tmp_path


def test_one_trace_in_the_order_of_time(folder: Path) -> None:
    out = folder / "trace.json"
    assert main(["trace", str(folder), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert len(times) == 6
    assert times == sorted(times)


def test_a_sequence_diagram(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(folder), "--mermaid", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sequenceDiagram",
        "    participant target",
        "    participant draft",
        "    target->>draft: 0.0 ms: commit sent, 1 tokens",
        "    Note over target: 0.5 to 50.5 ms: verify, depth 3",
        "    Note over draft: 2.0 to 11.0 ms: draft ahead",
        "    draft->>target: 29.0 to 39.0 ms: outcome buffered x 2",
        "    target->>draft: 50.6 ms: commit sent, 2 tokens",
    ]


def test_a_folder_without_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(tmp_path)]) == USER_ERROR
    assert "observability.timeline" in capsys.readouterr().err


def test_a_broken_line_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "router-1.jsonl").write_text("{}\nnonsense\n")
    assert main(["trace", str(folder)]) == USER_ERROR
    assert "router-1.jsonl, line 2" in capsys.readouterr().err


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    timeline = FileTimeline(tmp_path / "new", "draft")
    timeline.span("answer", 0.0, sessions=[1])
    timeline.mark("outcome sent", at=7)
    timeline.close()
    out = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path / "new"), "--out", str(out)]) == 0
    named, answer, sent = json.loads(out.read_text())["traceEvents"]
    assert named["args"]["name"] == "draft"
    assert (answer["name"], answer["args"], answer["ts"]) == ("answer", {"sessions": [1]}, 0.0)
    assert 0 < answer["dur"] <= sent["ts"]


def test_it_is_off_unless_a_folder_is_given(tmp_path: Path) -> None:
    assert open_timeline(None, "draft") is OFF
    OFF.mark("nothing")
    OFF.span("nothing", 0.0)
    timeline = open_timeline(str(tmp_path), "draft")
    assert isinstance(timeline, FileTimeline)
    timeline.close()
    assert timeline.is_on
    assert not OFF.is_on


@pytest.fixture
def request_folder(tmp_path: Path) -> Path:
    """A step for which the draft had sent two outcomes, and the next one's answer."""
    events = {
        "target": [
            _mark("commit sent", 0, at=9, added=1, depth=3),
            _span("verify", 500, 50_000, depths=[3]),
            _mark("outcome buffered", 12_000, at=11, tokens=3),
            _mark("outcome buffered", 13_000, at=12, tokens=3),
            _mark("commit sent", 50_600, at=10, added=2, depth=3),
            _span("verify", 51_000, 50_000, depths=[0]),
            _mark("answer buffered", 60_000, at=12, tokens=3),
            _mark("commit sent", 101_500, at=12, added=1, depth=3),
        ],
        "draft": [
            _span("commit arrived", 2_500, 10, at=[9], added=[1]),
            _span("draft ahead", 3_000, 6_000),
            _mark("outcome sent", 9_500, at=11),
            _mark("outcome sent", 9_500, at=12),
            _span("commit arrived", 53_000, 10, at=[10], added=[2]),
            _span("answer", 53_500, 4_000, sessions=[1]),
            _mark("outcome sent", 101_000, at=14),  # it is still on its way
        ],
    }
    for role, lines in events.items():
        (tmp_path / f"{role}-1.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in lines))
    return tmp_path


def _mark(name: str, ts: float, **args: Any) -> dict[str, Any]:
    return {"pid": 1, "tid": 0, "name": name, "ph": "i", "ts": ts, "args": args}


def _span(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return _mark(name, ts, **args) | {"ph": "X", "dur": dur}


def test_a_trace_has_the_wire_and_the_buffer_as_tracks(request_folder: Path) -> None:
    out = request_folder / "trace.json"
    assert main(["trace", str(request_folder), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]

    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M"
    }
    assert set(tracks.values()) == {"steps", "buffer", "wire"}
    on = {
        name: [e for e in events if tracks.get((e["pid"], e["tid"])) == name]
        for name in tracks.values()
    }
    buffered = [event["name"] for event in on["buffer"] if event["ph"] == "i"]
    assert buffered == ["outcome buffered", "outcome buffered", "answer buffered"]
    begun = {e["id"]: (e["name"], e["ts"]) for e in on["wire"] if e["ph"] == "b"}
    ended = {e["id"]: e["ts"] for e in on["wire"] if e["ph"] == "e"}
    assert [(*begun[i], ended[i]) for i in begun] == [
        ("commit", 0, 2_500),
        ("proposal", 9_500, 12_000),
        ("proposal", 9_500, 13_000),
        ("commit", 50_600, 53_000),
        ("proposal", 57_500, 60_000),
    ]


def test_what_was_lost_or_is_answered_next_is_not_on_the_wire(tmp_path: Path) -> None:
    """A second answer has begun when the first arrives; another request reaches a lost length."""
    events = [
        _mark("commit sent", 0, at=9, added=1, depth=3),
        _span("answer", 1_000, 2_000, sessions=[1]),
        _span("answer", 3_000, 9_000, sessions=[2]),
        _mark("answer buffered", 5_000, at=10, tokens=3),
        _mark("commit sent", 5_000_000, at=9, added=1, depth=3),
        _span("commit arrived", 5_002_000, 10, at=[9], added=[1]),
    ]
    (tmp_path / "target-1.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events))
    out = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--out", str(out)]) == 0
    traced = json.loads(out.read_text())["traceEvents"]
    times = [(e["ph"], e["ts"]) for e in traced if e.get("cat") == "wire"]
    assert times == [("b", 3_000), ("e", 5_000), ("b", 5_000_000), ("e", 5_002_000)]


def test_a_picture_shows_what_was_done_and_what_travelled(request_folder: Path) -> None:
    out = request_folder / "picture.svg"
    assert main(["trace", str(request_folder), "--svg", str(out), "--commits", "2"]) == 0
    root = ElementTree.parse(out).getroot()
    shapes = Counter((e.tag.rpartition("}")[2], e.get("class")) for e in root.iter())
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]

    assert (shapes["rect", "t"], shapes["rect", "a"], shapes["rect", "d"]) == (2, 1, 1)
    assert (shapes["line", "up"], shapes["line", "down"], shapes["line", "use"]) == (2, 3, 1)
    assert {"verify, depth 3", "verify, depth 0", "+1", "+2", "100"} <= {*texts}
    (ahead,) = (e for e in root.iter() if e.get("class") == "a")
    (first, _) = (e for e in root.iter() if e.get("class") == "t")
    assert float(ahead.get("width", 0)) == pytest.approx(float(first.get("width", 0)) * 0.12, 0.02)


def test_a_picture_of_many_seconds_has_an_axis_too(request_folder: Path) -> None:
    for path in request_folder.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        slow = [event | {"ts": 500 * event["ts"]} for event in events]
        path.write_text("".join(f"{json.dumps(event)}\n" for event in slow))
    out = request_folder / "picture.svg"
    assert main(["trace", str(request_folder), "--svg", str(out), "--commits", "2"]) == 0
    texts = [e.text for e in ElementTree.parse(out).getroot().iter() if e.tag.endswith("text")]
    assert "20000" in {text.replace(",", "") for text in texts if text}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--svg", "x.svg", "--commits", "0"], "--commits is 0"),
        (["--mermaid", "0"], "--mermaid is 0"),
        (["--mermaid", "-1"], "--mermaid is -1"),
        (["--out", "nowhere/x.json"], "nowhere/x.json: there is no folder nowhere"),
    ],
)
def test_what_can_not_be_drawn_is_refused(
    request_folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(request_folder), *words]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_a_timeline_too_short_for_a_picture_is_refused(
    request_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = request_folder / "picture.svg"
    arguments = ["trace", str(request_folder), "--svg", str(out), "--commits", "3"]
    assert main(arguments) == USER_ERROR
    assert "3 commits in a row" in capsys.readouterr().err
    assert not out.exists()
