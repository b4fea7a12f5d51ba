from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
)
from specray.wire.merge import merge_proposal_frames, merge_session_frames

ids = st.integers(0, 3)
opens = st.builds(
    OpenSession, ids, st.just((1,)), st.just(1), st.just(SamplingSettings()), st.integers(0, 9)
)
commits = st.builds(Commit, ids, st.integers(0, 9), st.just((1,)), st.just(1), st.just(0))
frames = st.builds(
    SessionFrame,
    st.lists(opens, max_size=2).map(tuple),
    st.lists(commits, max_size=2).map(tuple),
    st.lists(ids, max_size=2).map(tuple),
)

Sessions = Mapping[int, tuple[object, ...]]


def apply(sessions: Sessions, frame: SessionFrame) -> Sessions:
    """What a draft holds after a frame: of each session its opening and the commits since."""
    held = dict(sessions)
    for opened in frame.opens:
        held[opened.session_id] = (opened,)
    for commit in frame.commits:
        if commit.session_id in held:
            held[commit.session_id] = (*held[commit.session_id], commit)
    for session_id in frame.closes:
        held.pop(session_id, None)
    return held


@given(frames, frames, frames)
def test_a_merged_frame_leaves_a_draft_as_both_would(
    start: SessionFrame, first: SessionFrame, second: SessionFrame
) -> None:
    before = apply({}, start)
    merged = merge_session_frames(first, second)

    if merged is not None:
        assert apply(before, merged) == apply(apply(before, first), second)


def test_commits_of_two_steps_merge_in_order() -> None:
    early, late = (Commit(1, position, (7,), 1, 0) for position in (5, 6))

    assert merge_session_frames(
        SessionFrame(commits=(early,)), SessionFrame(commits=(late,), closes=(2,))
    ) == SessionFrame(commits=(early, late), closes=(2,))


def test_a_reopened_session_waits_for_its_close() -> None:
    opened = OpenSession(1, (1,), 1, SamplingSettings(), 1)

    assert merge_session_frames(SessionFrame(closes=(1,)), SessionFrame(opens=(opened,))) is None


def test_proposals_merge_unless_their_session_was_lost_before() -> None:
    proposal = Proposal(1, 1, 1, (1,), "model")
    frame = ProposalFrame((proposal,))

    assert merge_proposal_frames(ProposalFrame(lost=(1,)), frame) is None
    assert merge_proposal_frames(frame, ProposalFrame(lost=(1,))) == ProposalFrame(
        (proposal,), (1,)
    )


def test_the_latest_list_of_drafts_counts() -> None:
    first, second = ProposalFrame(drafts=("d:1",)), ProposalFrame(drafts=())

    assert merge_proposal_frames(first, second) == second
    assert merge_proposal_frames(first, ProposalFrame(lost=(1,))) == ProposalFrame(
        lost=(1,), drafts=("d:1",)
    )
