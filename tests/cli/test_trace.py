import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specray.cli import USER_ERROR, main
from tests.cli.timelines import DRAFT, came, mark, named, sent, span, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two steps as a target and a draft wrote them, and a line that was cut off."""
    write(
        tmp_path,
        [
            named("target"),
            sent(1_000, 1, at=9, added=1, sent_ns=900_000),
            span("verify", 1_500, 50_000, sessions=[1], depths=[3], sources=["model"]),
            mark("outcome buffered", 30_000, session=1, at=11, tokens=3),
            mark("outcome buffered", 40_000, session=1, at=12, tokens=3),
            sent(51_600, 1, at=10, added=2, sent_ns=51_500_000),
        ],
        [span("draft ahead", 3_000, 9_000, sessions=[1])],
    )
    for file in tmp_path.glob("*.jsonl"):
        with file.open("a") as unfinished:
            unfinished.write('{"na')
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


@pytest.fixture
def request_folder(tmp_path: Path) -> Path:
    """A step for which the draft had sent two outcomes, and the next one's answer."""
    write(
        tmp_path,
        [
            sent(0, 1, at=9, added=1, sent_ns=100),
            span("verify", 500, 50_000, sessions=[1], depths=[3], sources=["model"]),
            mark("outcome buffered", 12_000, session=1, at=11, tokens=3),
            mark("outcome buffered", 13_000, session=1, at=12, tokens=3),
            sent(50_600, 1, at=10, added=2, sent_ns=200),
            span("verify", 51_000, 50_000, sessions=[1], depths=[0], sources=[None]),
            mark("answer buffered", 60_000, session=1, at=12, tokens=3),
            sent(101_500, 1, at=12, added=1, sent_ns=300),
        ],
        [
            came(2_500, (7, 9, 1, 100)),
            span("draft ahead", 3_000, 6_000, sessions=[7]),
            mark("outcome sent", 9_500, session=7, at=11),
            mark("outcome sent", 9_500, session=7, at=12),
            came(53_000, (7, 10, 2, 200)),
            span("answer", 53_500, 4_000, sessions=[7]),
            mark("outcome sent", 101_000, session=7, at=14),  # it is still on its way
        ],
    )
    return tmp_path


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


def test_no_spans_of_a_track_cross(tmp_path: Path) -> None:
    """Perfetto would drop one of them; a commit waits for the end of a pass that ran already."""
    write(
        tmp_path,
        [sent(0, 1, at=9, added=1, sent_ns=100)],
        [span("draft ahead", 500, 2_000, sessions=[6]), came(1_000, (7, 9, 1, 100), dur=1_600)],
    )
    out = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]

    assert [event["name"] for event in events if event["ph"] == "X"] == ["draft ahead"]
    waiting = [(e["ph"], e["ts"], e["pid"]) for e in events if e.get("cat") == "inbox"]
    assert waiting == [("b", 1_000, DRAFT), ("e", 2_600, DRAFT)]


def test_what_was_lost_or_is_answered_next_is_not_on_the_wire(tmp_path: Path) -> None:
    """A second answer has begun when the first arrives; an outcome was lost a while before."""
    write(
        tmp_path,
        [
            sent(0, 1, at=8, added=1, sent_ns=50),  # to a draft that has died
            sent(100, 1, at=9, added=1, sent_ns=100),
            mark("answer buffered", 5_000, session=1, at=10, tokens=3),
            mark("outcome buffered", 5_000_000, session=1, at=12, tokens=3),
        ],
        [
            came(600, (4, 9, 1, 100)),
            span("answer", 1_000, 2_000, sessions=[3, 4]),
            span("answer", 3_000, 9_000, sessions=[4]),
            mark("outcome sent", 3_000_000, session=4, at=12),
            mark("outcome sent", 4_900_000, session=4, at=12),
        ],
    )
    out = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--out", str(out)]) == 0
    traced = json.loads(out.read_text())["traceEvents"]
    times = [(e["name"], e["ph"], e["ts"]) for e in traced if e.get("cat") == "wire"]
    assert times == [
        ("commit", "b", 100),
        ("commit", "e", 600),
        ("proposal", "b", 3_000),
        ("proposal", "e", 5_000),
        ("proposal", "b", 4_900_000),
        ("proposal", "e", 5_000_000),
    ]


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


def test_labels_are_as_long_as_there_is_room(tmp_path: Path) -> None:
    verifications = [(0, 600_000), (610_000, 72_000), (690_000, 10_000), (710_000, 110_000)]
    write(
        tmp_path,
        [
            sent(0, 1, at=9, added=1, sent_ns=100),
            *(
                span("verify", ts, dur, sessions=[1], depths=[3], sources=["engine"])
                for ts, dur in verifications
            ),
            sent(1_000_000, 1, at=10, added=1, sent_ns=200),
        ],
    )
    out = tmp_path / "picture.svg"
    assert main(["trace", str(tmp_path), "--svg", str(out), "--commits", "1"]) == 0
    texts = [e.text for e in ElementTree.parse(out).getroot().iter() if e.tag.endswith("text")]
    said = [text for text in texts if text and "depth" in text]
    assert said == ["verify, depth 3, its own", "depth 3", "depth 3"]


def test_commits_of_two_requests_are_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the second extends the length that the first has come to."""
    write(tmp_path, [sent(0, 1, 9, 1, sent_ns=100), sent(50_000, 2, 10, 1, sent_ns=200)])
    arguments = ["trace", str(tmp_path), "--svg", str(tmp_path / "x.svg"), "--commits", "1"]
    assert main(arguments) == USER_ERROR
    assert "--request" in capsys.readouterr().err


def test_a_timeline_too_short_for_a_picture_is_refused(
    request_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = request_folder / "picture.svg"
    arguments = ["trace", str(request_folder), "--svg", str(out), "--commits", "3"]
    assert main(arguments) == USER_ERROR
    assert "3 commits in a row" in capsys.readouterr().err
    assert not out.exists()
