"""Three requests at once, of which one is chosen."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specray.cli import USER_ERROR, main
from tests.cli.timelines import (
    DRAFT,
    TARGET,
    Event,
    arrived,
    came,
    mark,
    named,
    sent,
    span,
    write,
)

OTHER_TARGET = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The draft numbers the sessions 1 and 2 of the target the other way round."""
    write(
        tmp_path,
        [
            named("target"),
            arrived(0, 1, "one", "chatcmpl-one-0a1b2c3d"),
            arrived(10, 2, "two", "cmpl-two-0-0a1b2c3d"),
            sent(100, 1, at=9, added=1, sent_ns=100),
            sent(110, 2, at=9, added=1, sent_ns=110),
            span(
                "verify",
                *(500, 50_000),
                sessions=[2, None, 1],
                depths=[3, 0, 2],
                sources=["model", None, "stop_gap"],
            ),
            mark("outcome buffered", 12_000, session=2, at=11, tokens=3),
            mark("outcome buffered", 13_000, session=1, at=12, tokens=3),
            sent(50_600, 1, at=10, added=2, sent_ns=200),
            sent(50_610, 2, at=10, added=1, sent_ns=210),
            span("verify", 60_000, 9_000, sessions=[2], depths=[1], sources=["model"]),
        ],
        [
            named("draft"),
            span("open", 50, 10, session=2, request="one"),
            span("open", 60, 10, session=1, request="two"),
            came(2_500, (2, 9, 1, 100), (1, 9, 1, 110)),
            span("draft ahead", 3_000, 6_000, sessions=[1, 2]),
            span("draft ahead", 9_000, 400, sessions=[]),  # it does not say for whom
            mark("outcome sent", 9_500, session=2, at=12),
            mark("outcome sent", 9_600, session=1, at=11),
            span("answer", 53_500, 4_000, sessions=[1]),
        ],
    )
    return tmp_path


def trace(folder: Path, request: str) -> list[Event]:
    """What is left in the trace, but for the tracks' names."""
    out = folder / "trace.json"
    assert main(["trace", str(folder), "--request", request, "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    return [event for event in events if event["ph"] != "M"]


def test_a_request_is_followed_from_its_target_to_its_draft(folder: Path) -> None:
    events = trace(folder, "one")

    seen = [(event["pid"], event["name"], event["ph"], event["ts"]) for event in events]
    assert seen == [
        (TARGET, "request arrived", "i", 0),
        (DRAFT, "open", "X", 50),
        (TARGET, "commit sent", "i", 100),
        (TARGET, "verify", "X", 500),
        (DRAFT, "commit arrived", "b", 2_500),
        (DRAFT, "commit arrived", "e", 2_510),
        (DRAFT, "draft ahead", "X", 3_000),
        (DRAFT, "outcome sent", "i", 9_500),
        (TARGET, "outcome buffered", "i", 13_000),
        (TARGET, "commit sent", "i", 50_600),
        (DRAFT + 1, "commit", "b", 100),
        (DRAFT + 1, "commit", "e", 2_500),
        (DRAFT + 1, "proposal", "b", 9_500),
        (DRAFT + 1, "proposal", "e", 13_000),
    ]


def test_of_a_batch_its_own_part_is_told(folder: Path) -> None:
    facts: dict[str, dict[str, Any]] = {
        event["name"]: event["args"] for event in trace(folder, "one") if "args" in event
    }

    assert facts["verify"] == {
        "sessions": [1],
        "depths": [2],
        "sources": ["stop_gap"],
        "batch_size": 3,
    }
    assert facts["commit arrived"] == {
        "sessions": [2],
        "at": [9],
        "added": [1],
        "sent_ns": [100],
        "batch_size": 2,
    }
    assert facts["commit"] == {"target": TARGET, "session": 1, "at": 9}


@pytest.mark.parametrize(
    "name", ["two", "cmpl-two", "cmpl-two-0-0a1b2c3d", "2"], ids=["id", "body", "vllm", "number"]
)
def test_it_has_several_names(folder: Path, name: str) -> None:
    events = trace(folder, name)

    (arrival,) = (event for event in events if event["name"] == "request arrived")
    assert arrival["args"]["request"] == "two"
    assert [e["args"]["depths"] for e in events if e["name"] == "verify"] == [[3], [1]]


def test_all_choices_of_an_answer_are_kept(folder: Path) -> None:
    with (folder / f"target-{TARGET}.jsonl").open("a") as more:
        more.write(json.dumps({"pid": TARGET} | arrived(20, 3, "one", "1_chatcmpl-one-00")) + "\n")

    sessions = [
        e["args"]["session"] for e in trace(folder, "one") if e["name"] == "request arrived"
    ]
    assert sessions == [1, 3]


def test_the_picture_is_of_the_request(folder: Path) -> None:
    out = folder / "one.svg"
    arguments = ["trace", str(folder), "--request", "one", "--svg", str(out), "--commits", "1"]
    assert main(arguments) == 0
    shapes = [(e.get("class"), e.text) for e in ElementTree.parse(out).getroot().iter()]
    assert (None, "verify, depth 2, its own") in shapes
    assert [kind for kind, _ in shapes].count("down") == 1


def test_processes_that_had_nothing_to_do_with_it_are_left_out(folder: Path) -> None:
    other = [named("target"), arrived(5, 9, "elsewhere")]
    write_other(folder, other)
    out = folder / "trace.json"
    assert main(["trace", str(folder), "--request", "elsewhere", "--out", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {OTHER_TARGET}
    assert len(events) == 2


def test_an_unknown_request_is_refused_with_those_that_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "trace.json"
    assert main(["trace", str(folder), "--request", "three", "--out", str(out)]) == USER_ERROR
    message = capsys.readouterr().err
    assert "--request three" in message
    assert "it has one, two" in message
    assert not out.exists()


def test_only_the_latest_of_many_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = arrived(50, 8, "")
    write(tmp_path, [*(arrived(i, i, f"r{i}") for i in range(1, 8)), unnamed])
    assert main(["trace", str(tmp_path), "--request", "nobody"]) == USER_ERROR
    assert "it has r4, r5, r6, r7, vllms-own and 3 before" in capsys.readouterr().err


def test_a_number_that_two_targets_have_given_is_not_enough(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_other(folder, [arrived(5, 1, "elsewhere")])
    assert main(["trace", str(folder), "--request", "1"]) == USER_ERROR
    assert "2 targets have a session of that number" in capsys.readouterr().err


def write_other(folder: Path, events: list[Event]) -> None:
    lines = "".join(json.dumps({"pid": OTHER_TARGET} | event) + "\n" for event in events)
    (folder / f"target-{OTHER_TARGET}.jsonl").write_text(lines)
