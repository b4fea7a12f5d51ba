import json
from pathlib import Path

import pytest

from specray.wire.timeline import OFF, FileTimeline, open_timeline


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    timeline = FileTimeline(tmp_path / "new", "draft")
    timeline.span("answer", 0.0, sessions=[1])
    timeline.mark("outcome sent", session=1, at=7)

    (file,) = (tmp_path / "new").glob("draft-*.jsonl")
    named, answer, sent = map(json.loads, file.read_text().splitlines())  # before it is closed
    timeline.close()
    assert named["args"]["name"] == "draft"
    assert (answer["name"], answer["args"], answer["ts"]) == ("answer", {"sessions": [1]}, 0.0)
    assert (sent["name"], sent["args"]) == ("outcome sent", {"session": 1, "at": 7})
    assert 0 < answer["dur"] <= sent["ts"]
    assert file.name == f"draft-{answer['pid']}.jsonl"


def test_nothing_is_written_once_it_is_closed(tmp_path: Path) -> None:
    timeline = FileTimeline(tmp_path, "draft")
    timeline.close()
    with pytest.raises(ValueError, match="closed"):
        timeline.mark("late")


def test_it_is_off_unless_a_folder_is_given(tmp_path: Path) -> None:
    assert open_timeline(None, "draft") is OFF
    OFF.mark("nothing")
    OFF.span("nothing", 0.0)
    timeline = open_timeline(str(tmp_path), "draft")
    assert isinstance(timeline, FileTimeline)
    timeline.close()
    assert timeline.is_on
    assert not OFF.is_on
