from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.errors import ProtocolError
from specray.types import (
    Accepted,
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    Source,
    TruncatedDistributions,
)
from specray.wire import speculation_pb2 as pb
from specray.wire.codec import (
    decode_proposal_frame,
    decode_session_frame,
    encode_proposal_frame,
    encode_session_frame,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
floats = st.floats(0, 100, width=32)
tokens = st.lists(uint32, max_size=6).map(tuple)

samplings = st.builds(SamplingSettings, temperature=floats, top_k=uint32, top_p=floats)
names = st.text(st.characters(codec="utf-8"), max_size=128)
opens = st.builds(
    OpenSession,
    *(uint64, tokens, uint32, samplings, uint32, names, names, names, names, st.booleans()),
)
accepted = st.builds(Accepted, uint32, uint32, st.sampled_from(get_args(Source)))
commits = st.builds(
    Commit,
    *(uint64, uint32, tokens, uint32, uint64),
    st.lists(accepted, max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
)
session_frames = st.builds(
    SessionFrame,
    st.lists(opens, max_size=3).map(tuple),
    st.lists(commits, max_size=3).map(tuple),
    st.lists(uint64, max_size=3).map(tuple),
)


@given(session_frames)
def test_session_frame_survives_the_wire(frame: SessionFrame) -> None:
    assert decode_session_frame(encode_session_frame(frame)) == frame


def test_names_are_cut_whoever_sends_them() -> None:
    data = pb.SessionFrame(
        opens=[pb.OpenSession(request_id="x" * 10_000, traceparent="y" * 10_000, target="z" * 999)]
    ).SerializeToString()
    received = decode_session_frame(data).opens[0]

    assert (received.request_id, received.traceparent) == ("x" * 128, "y" * 128)
    assert received.target == "z" * 128
    long = OpenSession(1, (1,), 1, SamplingSettings(), 1, "x" * 10_000, target="z" * 10_000)
    assert len(encode_session_frame(SessionFrame((long,)))) < 330


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    token_ids = draw(tokens)
    support = draw(st.integers(0, 4))
    rows = None
    if support:
        seed = draw(st.integers(0, 2**32 - 1))
        rows = random_rows(len(token_ids), support, np.random.default_rng(seed))
    return Proposal(
        *(draw(uint64), draw(uint32), draw(uint32), token_ids),
        source=draw(st.sampled_from(("model", "prompt_lookup"))),
        distributions=rows,
        commit_sent_at_ns=draw(uint64),
        draft_time_us=draw(uint32),
        confidences=draw(st.tuples(*(floats for _ in token_ids)) | st.just(())),
    )


def random_rows(depth: int, support: int, rng: np.random.Generator) -> TruncatedDistributions:
    return TruncatedDistributions(
        rng.integers(0, 2**31 - 1, (depth, support), dtype=np.int32),
        rng.random((depth, support), dtype=np.float32),
    )


def comparable(proposal: Proposal) -> tuple[object, ...]:
    rows = proposal.distributions
    matrices = () if rows is None else (rows.token_ids, rows.probabilities)
    arrays = [(matrix.shape, matrix.dtype, matrix.tobytes()) for matrix in matrices]
    return (
        *(proposal.session_id, proposal.position, proposal.last_token_id, proposal.token_ids),
        *(proposal.source, arrays, proposal.commit_sent_at_ns, proposal.draft_time_us),
        proposal.confidences,
    )


@given(st.lists(proposals(), max_size=3).map(tuple), st.lists(uint64, max_size=3).map(tuple))
def test_proposal_frame_survives_the_wire(
    sent: tuple[Proposal, ...], lost: tuple[int, ...]
) -> None:
    frame = decode_proposal_frame(encode_proposal_frame(ProposalFrame(sent, lost)))

    assert [comparable(proposal) for proposal in frame.proposals] == list(map(comparable, sent))
    assert frame.lost == lost


def test_confidences_that_are_not_one_for_each_token_are_refused() -> None:
    message = pb.Proposal(token_ids=[1, 2], source="model", confidences=[0.5])
    frame = pb.ProposalFrame(proposals=[message])

    with pytest.raises(ProtocolError, match="1 confidences for 2 tokens"):
        decode_proposal_frame(frame.SerializeToString())


def test_distributions_that_are_a_slice_survive() -> None:
    rows = random_rows(4, 6, np.random.default_rng(0))
    narrow = TruncatedDistributions(rows.token_ids[:2, ::2], rows.probabilities[:2, ::2])
    frame = ProposalFrame((Proposal(1, 2, 3, (4, 5), "model", narrow),))

    received = decode_proposal_frame(encode_proposal_frame(frame)).proposals[0].distributions

    assert received is not None
    np.testing.assert_array_equal(received.token_ids, narrow.token_ids)
    np.testing.assert_array_equal(received.probabilities, narrow.probabilities)


@pytest.mark.parametrize("num_bytes", [(0, 0), (16, 12), (12, 16), (20, 20)])
def test_matrices_of_the_wrong_size_are_refused(num_bytes: tuple[int, int]) -> None:
    message = pb.Proposal(
        token_ids=(1, 2),
        source="model",
        support=2,
        support_token_ids=bytes(num_bytes[0]),
        support_probabilities=bytes(num_bytes[1]),
    )
    data = pb.ProposalFrame(proposals=[message]).SerializeToString()

    with pytest.raises(ProtocolError, match="16 bytes each are due"):
        decode_proposal_frame(data)


def test_matrices_without_support_are_refused() -> None:
    message = pb.Proposal(source="model", support_token_ids=b"1234")

    with pytest.raises(ProtocolError, match="support of 0"):
        decode_proposal_frame(pb.ProposalFrame(proposals=[message]).SerializeToString())


def test_unknown_source_is_refused() -> None:
    data = pb.ProposalFrame(proposals=[pb.Proposal(source="oracle")]).SerializeToString()

    with pytest.raises(ProtocolError, match="oracle"):
        decode_proposal_frame(data)


@pytest.mark.parametrize("decode", [decode_session_frame, decode_proposal_frame])
def test_bytes_that_are_no_message_are_refused(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(ProtocolError, match="are not a specray.v1"):
        decode(b"\xff\xff\xff")


def test_negative_id_can_not_be_sent() -> None:
    with pytest.raises(ValueError, match=r"-1|[Oo]ut of range|[Vv]alue"):
        encode_session_frame(SessionFrame(closes=(-1,)))


@pytest.mark.parametrize("drafts", [None, (), ("10.0.0.7:4711", "[fd00::1]:80", "draft-1.svc:9")])
def test_named_drafts_survive_the_wire_and_none_is_not_nothing(
    drafts: tuple[str, ...] | None,
) -> None:
    frame = ProposalFrame(drafts=drafts)

    assert decode_proposal_frame(encode_proposal_frame(frame)) == frame
    assert bool(frame) == (drafts is not None)


@pytest.mark.parametrize("address", ["", "host", "unix:/tmp/s", "dns:///host:1", "host:1 ", "a:b"])
def test_what_is_no_address_is_not_dialled(address: str) -> None:
    data = pb.ProposalFrame(drafts=pb.Drafts(addresses=[address])).SerializeToString()
    with pytest.raises(ProtocolError, match="no draft's address"):
        decode_proposal_frame(data)


def test_what_a_newer_target_calls_a_source_is_left_out_and_the_commit_is_not() -> None:
    accepted = [pb.Accepted(position=1, num_tokens=1, source=name) for name in ("new", "model")]
    frame = pb.SessionFrame(commits=[pb.Commit(session_id=1, token_ids=[5, 6], accepted=accepted)])
    (commit,) = decode_session_frame(frame.SerializeToString()).commits

    assert commit.token_ids == (5, 6)
    assert commit.accepted == (Accepted(1, 1, "model"),)
