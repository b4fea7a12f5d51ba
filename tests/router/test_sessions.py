import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.router.sessions import SessionTable
from specray.types import (
    Accepted,
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opening(session_id: int) -> OpenSession:
    return OpenSession(session_id, (1, 2), 2, SamplingSettings(), 4)


def opens(*session_ids: int) -> SessionFrame:
    return SessionFrame(opens=tuple(opening(session_id) for session_id in session_ids))


def commit(session_id: int, depth: int = 4, sent_at_ns: int = 0) -> Commit:
    return Commit(session_id, 2, (3,), depth, sent_at_ns)


def proposal(session_id: int, commit_sent_at_ns: int = 0) -> Proposal:
    return Proposal(session_id, 3, 3, (4,), "prompt_lookup", commit_sent_at_ns=commit_sent_at_ns)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> SessionTable:
    table = SessionTable(clock)
    table.add_draft("d1")
    table.add_draft("d2")
    return table


def test_sessions_spread_over_drafts_whatever_their_target(table: SessionTable) -> None:
    table.from_target("t1", opens(1, 2))
    table.from_target("t2", opens(1, 2))

    assert table.num_open == {"d1": 2, "d2": 2}


def test_a_session_that_moves_is_logged_with_its_request(
    table: SessionTable, caplog: pytest.LogCaptureFixture
) -> None:
    named = replace(opening(1), request_id="r1")
    with caplog.at_level(logging.INFO, "specray"):
        table.from_target("t", SessionFrame(opens=(named,)))
        table.remove_draft("d1", "draft_died")
        table.from_target("t", SessionFrame(opens=(named,)))
        table.from_draft("d2", ProposalFrame(lost=(2,)))

    assert [vars(record)["request_id"] for record in caplog.records] == ["r1", "r1"]
    assert [record.getMessage() for record in caplog.records] == [
        "Lost its draft d1: draft_died",
        "Lost its draft d2: draft_evicted",
    ]


def test_equal_drafts_are_told_apart_by_what_they_owe(table: SessionTable) -> None:
    table.from_target("t", opens(1, 2))  # 1 on d1, 2 on d2
    table.from_target("t", SessionFrame(commits=(commit(1),)))

    assert set(table.from_target("t", opens(3))) == {"d2"}


def test_ids_are_unique_towards_drafts_and_mapped_back(table: SessionTable) -> None:
    table.add_draft("d1")
    sent = [table.from_target(target, opens(7)) for target in ("t1", "t2", "t3", "t4")]
    on_d1 = [frames["d1"].opens[0].session_id for frames in sent if "d1" in frames]
    assert len(set(on_d1)) == 2

    back = table.from_draft("d1", ProposalFrame(tuple(map(proposal, on_d1))))

    assert {target: frame.proposals[0].session_id for target, frame in back.items()} == {
        "t1": 7,
        "t3": 7,
    }


def test_news_of_one_frame_stay_one_frame_per_draft(table: SessionTable) -> None:
    frame = SessionFrame((opening(1), opening(3), opening(2)), (commit(1), commit(2)), (3,))

    to_d1 = table.from_target("t", frame)["d1"]

    first, second = (session.session_id for session in to_d1.opens)
    assert [c.session_id for c in to_d1.commits] == [first, second]
    assert [c.token_ids for c in to_d1.commits] == [(3,), (3,)]
    assert table.num_open == {"d1": 2, "d2": 0}


def test_opening_again_closes_the_old_session(table: SessionTable) -> None:
    old = table.from_target("t", opens(1))["d1"].opens[0].session_id
    again = table.from_target("t", opens(1))

    assert again["d1"].closes == (old,)
    assert again["d1"].opens[0].session_id != old
    assert sum(table.num_open.values()) == 1
    assert table.from_draft("d1", ProposalFrame((proposal(old),))) == {}


def test_a_draft_can_not_speak_for_sessions_of_another(table: SessionTable) -> None:
    relay_id = table.from_target("t", opens(1))["d1"].opens[0].session_id
    forged = ProposalFrame((proposal(relay_id), proposal(99)), lost=(relay_id, 99))

    assert table.from_draft("d2", forged) == {}
    assert table.from_draft("stranger", forged) == {}
    assert table.num_open == {"d1": 1, "d2": 0}


def test_drafts_are_not_told_what_only_lookers_on_want(table: SessionTable) -> None:
    table.from_target("t", opens(1))
    sent = replace(commit(1), accepted=(Accepted(3, 1, "model"),))

    (passed_on,) = table.from_target("t", SessionFrame(commits=(sent,)))["d1"].commits
    assert passed_on.accepted == ()
    ending = table.from_target("t", SessionFrame(commits=(sent,), closes=(1,)))["d1"]
    assert (ending.commits, len(ending.closes)) == ((), 1)  # no work for a session that is over


def test_lost_once_is_lost_for_good(table: SessionTable) -> None:
    relay_id = table.from_target("t", opens(1))["d1"].opens[0].session_id

    lost = table.from_draft("d1", ProposalFrame(lost=(relay_id, relay_id)))

    assert lost == {"t": ProposalFrame(lost=(1,))}
    assert table.fallbacks["draft_evicted"] == 1
    assert table.from_target("t", SessionFrame(commits=(commit(1),), closes=(1,))) == {}


def test_a_dead_draft_loses_its_sessions_to_another(table: SessionTable) -> None:
    table.from_target("t", opens(1, 2, 3))

    assert table.remove_draft("d1", "draft_died") == {"t": ProposalFrame(lost=(1, 3))}
    assert table.fallbacks["draft_died"] == 2
    assert set(table.from_target("t", opens(1, 3))) == {"d2"}
    assert table.num_open == {"d2": 3}


def test_without_a_draft_sessions_wait_for_one(table: SessionTable) -> None:
    for draft in ("d1", "d2"):
        table.remove_draft(draft, "draft_died")

    assert table.from_target("t", opens(5, 6)) == {}
    assert table.from_target("t", SessionFrame(commits=(commit(5),), closes=(6,))) == {}
    assert (table.num_homeless, table.fallbacks["no_draft"]) == (1, 2)
    assert table.add_draft("d3") == {"t": ProposalFrame(lost=(5,))}
    assert table.num_homeless == 0


def test_a_dead_target_closes_its_sessions(table: SessionTable) -> None:
    relay_ids = [table.from_target("t1", opens(i))["d1"].opens[0].session_id for i in (1,)]
    table.from_target("t2", opens(1))

    assert table.remove_target("t1") == {"d1": SessionFrame(closes=tuple(relay_ids))}
    assert table.num_open == {"d1": 0, "d2": 1}
    assert table.remove_target("t1") == {}


def owe(table: SessionTable, sent_at_ns: int, depth: int = 4) -> int:
    """Let d1 owe a proposal for session 1; its id there."""
    relay_id = table.from_target("t", opens(1))["d1"].opens[0].session_id
    table.from_target("t", SessionFrame(commits=(commit(1, depth, sent_at_ns),)))
    return relay_id


def test_a_draft_that_owes_too_long_has_stalled(table: SessionTable, clock: Clock) -> None:
    owe(table, sent_at_ns=10)
    clock.now = 1.0
    assert table.stalled(1.0) == []
    clock.now = 1.1
    assert table.stalled(1.0) == ["d1"]


def test_later_commits_do_not_extend_the_deadline(table: SessionTable, clock: Clock) -> None:
    owe(table, sent_at_ns=10)
    clock.now = 0.9
    table.from_target("t", SessionFrame(commits=(commit(1, sent_at_ns=11),)))
    clock.now = 1.1
    assert table.stalled(1.0) == ["d1"]


def test_a_draft_owes_nothing_that_nobody_waits_for(table: SessionTable, clock: Clock) -> None:
    table.from_target("t", opens(1))
    unawaited = replace(commit(1, sent_at_ns=10), is_unawaited=True)
    table.from_target("t", SessionFrame(commits=(unawaited,)))
    clock.now = 9.0
    assert table.stalled(1.0) == []


def test_an_answer_settles_the_debt(table: SessionTable, clock: Clock) -> None:
    relay_id = owe(table, sent_at_ns=10)
    table.from_draft("d1", ProposalFrame((proposal(relay_id, 10), proposal(relay_id, 10))))
    clock.now = 9.0
    assert table.stalled(1.0) == []


def test_an_answer_to_an_older_commit_is_progress_only(table: SessionTable, clock: Clock) -> None:
    relay_id = owe(table, sent_at_ns=10)
    clock.now = 0.9
    table.from_draft("d1", ProposalFrame((proposal(relay_id, 9),)))
    clock.now = 1.8
    assert table.stalled(1.0) == []
    clock.now = 2.0
    assert table.stalled(1.0) == ["d1"]


@pytest.mark.parametrize("how", ["depth 0", "closed"])
def test_what_is_not_wanted_is_not_owed(table: SessionTable, clock: Clock, how: str) -> None:
    owe(table, sent_at_ns=10)
    unwanted = SessionFrame(commits=(commit(1, depth=0),))
    table.from_target("t", unwanted if how == "depth 0" else SessionFrame(closes=(1,)))
    clock.now = 9.0
    assert table.stalled(1.0) == []


def test_a_draft_back_from_a_stall_gets_one_session_on_trial(table: SessionTable) -> None:
    table.remove_draft("d1", "draft_stalled")
    table.add_draft("d1")
    sent = [table.from_target("t", opens(i)) for i in range(4)]

    assert table.num_open == {"d2": 3, "d1": 1}
    relay_id = next(frames["d1"] for frames in sent if "d1" in frames).opens[0].session_id
    table.from_draft("d1", ProposalFrame((proposal(relay_id),)))
    assert set(table.from_target("t", opens(4, 5))) == {"d1"}


def asks(*session_ids: int) -> SessionFrame:
    return SessionFrame(commits=tuple(commit(session_id) for session_id in session_ids))


def crowded(table: SessionTable, num_sessions: int) -> None:
    """All on d1; d2 is new."""
    table.remove_draft("d2", "draft_died")
    table.from_target("t", opens(*range(num_sessions)))
    table.from_target("t", asks(*range(num_sessions)))
    table.add_draft("d2")


def even_out(table: SessionTable) -> int:
    """Until nothing moves any more; how many did. The target goes on asking for proposals."""
    num_moved = 0
    while (moves := table.even_out()).to_targets:
        ((_, lost),) = moves.to_targets.items()
        ((_, closed),) = moves.to_drafts.items()
        assert len(lost.lost) == len(closed.closes) == 1
        table.from_target("t", opens(*lost.lost))
        table.from_target("t", asks(*lost.lost))
        num_moved += 1
        assert num_moved <= 100
    return num_moved


def test_drafts_that_are_new_get_a_share_of_what_runs(table: SessionTable) -> None:
    crowded(table, 64)
    table.add_draft("d3")

    num_moved = even_out(table)

    assert sum(table.num_open.values()) == 64
    assert max(table.num_open.values()) - min(table.num_open.values()) <= 6
    assert table.fallbacks["evened_out"] == num_moved < 50


def test_a_draft_that_has_had_its_share_is_given_no_more(table: SessionTable) -> None:
    crowded(table, 16)
    even_out(table)
    d2 = [
        session_id for session_id in range(16) if "d2" in table.from_target("t", asks(session_id))
    ]
    table.from_target("t", SessionFrame(closes=tuple(d2)))

    assert table.num_open["d2"] == 0
    assert even_out(table) == 0


def test_the_session_that_is_shortest_by_now_moves(table: SessionTable) -> None:
    crowded(table, 3)
    for session_id, position in enumerate((900, 100, 500)):
        grown = replace(commit(session_id), position=position)
        table.from_target("t", SessionFrame(commits=(grown,)))

    assert table.even_out().to_targets["t"].lost == (1,)


def test_few_more_are_no_reason_to_move(table: SessionTable) -> None:
    crowded(table, 2)

    assert even_out(table) == 0


def test_sessions_that_want_nothing_stay(table: SessionTable, clock: Clock) -> None:
    """Their target would not open them again."""
    crowded(table, 8)
    clock.now = 2.0

    assert even_out(table) == 0
    table.from_target("t", asks(5))
    assert table.even_out().to_targets["t"].lost == (5,)


def test_a_draft_that_loses_what_it_is_given_gets_no_more(table: SessionTable) -> None:
    crowded(table, 40)
    (lost,) = table.even_out().to_targets.values()
    (opened,) = table.from_target("t", opens(*lost.lost))["d2"].opens
    table.from_draft("d2", ProposalFrame(lost=(opened.session_id,)))

    assert even_out(table) == 0
    assert table.num_open == {"d1": 39, "d2": 0}


def test_a_draft_back_from_a_stall_is_given_one_session_on_trial(table: SessionTable) -> None:
    crowded(table, 8)
    table.remove_draft("d2", "draft_stalled")
    table.add_draft("d2")
    (lost,) = table.even_out().to_targets.values()
    (opened,) = table.from_target("t", opens(*lost.lost))["d2"].opens
    assert even_out(table) == 0

    table.from_draft("d2", ProposalFrame((proposal(opened.session_id),)))
    assert even_out(table) > 0


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ("open", "commit", "close", "lost", "die", "join", "target dies", "even out")
        ),
        st.sampled_from(("t1", "t2")),
        st.sampled_from(("d1", "d2")),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(steps)
def test_drafts_and_table_agree_on_what_is_open(
    script: list[tuple[str, str, str, int]],
) -> None:
    table = SessionTable(Clock())
    held: dict[str, set[int]] = {}  # what each draft believes to have open
    for action, target, draft, number in script:
        frames = play(table, held, action, target, draft, number)
        for address, frame in frames.items():
            held[address] |= {session.session_id for session in frame.opens}
            assert held[address].issuperset(c.session_id for c in frame.commits)
            held[address] -= set(frame.closes)
        assert table.num_open == {address: len(ids) for address, ids in held.items()}


def play(
    table: SessionTable,
    held: dict[str, set[int]],
    action: str,
    target: str,
    draft: str,
    number: int,
) -> dict[str, SessionFrame]:
    match action:
        case "open":
            return table.from_target(target, opens(number))
        case "commit":
            return table.from_target(target, SessionFrame(commits=(commit(number),)))
        case "close":
            return table.from_target(target, SessionFrame(closes=(number,)))
        case "target dies":
            return table.remove_target(target)
        case "even out":
            return table.even_out().to_drafts
        case "lost":
            some = tuple(sorted(held.get(draft, set())))[:1]
            table.from_draft(draft, ProposalFrame(lost=some))
            held.get(draft, set()).difference_update(some)
        case "die":
            table.remove_draft(draft, "draft_died")
            held.pop(draft, None)
        case "join":
            table.add_draft(draft)
            held.setdefault(draft, set())
    return {}


def test_a_draft_that_works_its_way_through_many_sessions_has_not_stalled(
    table: SessionTable, clock: Clock
) -> None:
    table.remove_draft("d2", "draft_died")
    first, second = (s.session_id for s in table.from_target("t", opens(1, 2))["d1"].opens)
    table.from_target("t", SessionFrame(commits=(commit(1), commit(2))))
    clock.now = 0.9
    table.from_draft("d1", ProposalFrame((proposal(first),)))
    clock.now = 1.8
    assert table.stalled(1.0) == []
    clock.now = 2.0
    assert table.stalled(1.0) == ["d1"]
    table.from_draft("d1", ProposalFrame((proposal(second),)))
    assert table.stalled(1.0) == []
