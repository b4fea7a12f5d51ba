import json
from pathlib import Path

from specray.cli.trace import read
from specray.cli.travels import Session, followed, travels
from tests.cli.timelines import DRAFT, TARGET, came, mark, sent, span, write

OTHER_DRAFT = 3


def test_requests_of_the_same_length_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """What is sent for the first comes after what is sent for the second."""
    write(
        tmp_path,
        [
            sent(0, 1, at=9, added=1, sent_ns=100),
            sent(10, 2, at=9, added=1, sent_ns=110),
            mark("outcome buffered", 6_000, session=2, at=11, tokens=3),
            mark("outcome buffered", 9_000, session=1, at=11, tokens=3),
            mark("answer buffered", 12_000, session=1, at=10, tokens=3),
            mark("answer buffered", 13_000, session=2, at=10, tokens=3),
        ],
        [
            came(900, (1, 9, 1, 110)),
            came(1_000, (2, 9, 1, 100)),
            mark("outcome sent", 4_000, session=2, at=11),
            mark("outcome sent", 5_000, session=1, at=11),
            span("answer", 7_000, 1_000, sessions=[2]),
            span("answer", 8_500, 1_000, sessions=[1]),
        ],
    )
    seen = [(t.kind, t.session.number, t.left_us, t.arrived_us) for t in travels(read(tmp_path))]
    assert seen == [
        ("commit", 2, 10, 900),
        ("commit", 1, 0, 1_000),
        ("proposal", 2, 5_000, 6_000),
        ("proposal", 1, 4_000, 9_000),
        ("proposal", 1, 8_000, 12_000),
        ("proposal", 2, 9_500, 13_000),
    ]


def test_a_session_that_moves_to_another_draft_stays_the_same(tmp_path: Path) -> None:
    """Its number at the first draft is another session's at the other."""
    write(
        tmp_path,
        [
            sent(0, 5, at=9, added=1, sent_ns=100),
            sent(50_000, 5, at=10, added=1, sent_ns=200),
            mark("outcome buffered", 60_000, session=5, at=13, tokens=3),
        ],
        [came(1_000, (1, 9, 1, 100))],
    )
    other = [
        came(51_000, (None, 3, 1, 77), (8, 10, 1, 200)),
        mark("outcome sent", 55_000, session=1, at=13),
        mark("outcome sent", 59_000, session=8, at=13),
    ]
    lines = "".join(json.dumps({"pid": OTHER_DRAFT} | event) + "\n" for event in other)
    (tmp_path / f"draft-{OTHER_DRAFT}.jsonl").write_text(lines)
    events = read(tmp_path)

    its_own = Session(TARGET, 5)
    assert followed(events) == {Session(DRAFT, 1): its_own, Session(OTHER_DRAFT, 8): its_own}
    assert [tuple(travel) for travel in travels(events)] == [
        ("commit", its_own, 9, 0, 1_000),
        ("commit", its_own, 10, 50_000, 51_000),
        ("proposal", its_own, 13, 59_000, 60_000),
    ]


def test_a_commit_to_a_session_that_the_draft_has_lost_has_travelled_too(tmp_path: Path) -> None:
    write(tmp_path, [sent(0, 5, at=9, added=1, sent_ns=100)], [came(1_000, (None, 9, 1, 100))])
    events = read(tmp_path)

    assert followed(events) == {}
    assert [travel.kind for travel in travels(events)] == ["commit"]
