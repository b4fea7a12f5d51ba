from collections.abc import Iterator
from itertools import pairwise

import pytest
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
from specray.wire import split
from specray.wire.codec import (
    decode_proposal_frame,
    decode_session_frame,
    encode_proposal_frame,
    encode_session_frame,
)

ids = st.integers(0, 9)
texts = st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple)
opens = st.builds(
    OpenSession, ids, texts, st.just(1), st.just(SamplingSettings()), st.integers(0, 9)
)
commits = st.builds(Commit, ids, st.integers(0, 9), texts, st.just(1), st.just(0))
proposals = st.builds(Proposal, ids, st.integers(0, 9), ids, texts, st.just("model"))
session_frames = st.builds(
    SessionFrame,
    st.lists(opens, max_size=9).map(tuple),
    st.lists(commits, max_size=9).map(tuple),
    st.lists(ids, max_size=9).map(tuple),
)
drafts = st.none() | st.lists(st.just("host:1"), max_size=2).map(tuple)
proposal_frames = st.builds(
    ProposalFrame,
    st.lists(proposals, max_size=9).map(tuple),
    st.lists(ids, max_size=9).map(tuple),
    drafts,
)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Messages of fifty bytes are large ones here."""
    patch = pytest.MonkeyPatch()
    patch.setattr(split, "LARGEST", 50)
    yield
    patch.undo()


@given(session_frames)
def test_the_parts_of_session_news_say_the_same_in_the_same_order(frame: SessionFrame) -> None:
    parts = [decode_session_frame(data) for data in split.session_messages(frame)]

    assert [item for part in parts for item in (*part.opens, *part.commits, *part.closes)] == [
        *(*frame.opens, *frame.commits, *frame.closes)
    ]


@given(proposal_frames)
def test_the_parts_of_proposals_say_the_same_in_the_same_order(frame: ProposalFrame) -> None:
    parts = [decode_proposal_frame(data) for data in split.proposal_messages(frame)]

    proposals = tuple(proposal for part in parts for proposal in part.proposals)
    lost = tuple(session_id for part in parts for session_id in part.lost)
    whole = ProposalFrame(proposals, lost, parts[0].drafts)
    assert encode_proposal_frame(whole) == encode_proposal_frame(frame)
    assert not any(part.lost for part, after in pairwise(parts) if after.proposals)
    assert all(part.drafts is None for part in parts[1:])


@given(session_frames, proposal_frames)
def test_only_what_holds_one_item_is_large(news: SessionFrame, answers: ProposalFrame) -> None:
    for data in split.session_messages(news):
        part = decode_session_frame(data)
        num_items = len(part.opens) + len(part.commits) + len(part.closes)
        assert len(data) <= split.LARGEST or num_items == 1
    for data in split.proposal_messages(answers):
        got = decode_proposal_frame(data)
        assert len(data) <= split.LARGEST or len(got.proposals) + len(got.lost) == 1


def test_a_frame_that_is_small_enough_is_one_message() -> None:
    news, answers = SessionFrame(closes=(1, 2)), ProposalFrame(lost=(1, 2), drafts=())

    assert [*split.session_messages(news)] == [encode_session_frame(news)]
    assert [*split.proposal_messages(answers)] == [encode_proposal_frame(answers)]
    assert [*split.session_messages(SessionFrame())] == [b""]
