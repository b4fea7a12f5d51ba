import numpy as np
import pytest

from specray.errors import ProtocolError
from specray.target.buffer import ProposalBuffer
from specray.target.service import RouterStreams
from specray.types import (
    Commit,
    Proposal,
    ProposalFrame,
    SessionFrame,
    SpeculationPolicy,
    TruncatedDistributions,
)
from specray.wire.stats import TargetStats
from tests.wire.fakes import RecordedTimeline

NOW_NS = 5_000_000_000_000
FRAME = SessionFrame(closes=(1,))


class Peer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[SessionFrame] = []

    def send(self, frame: SessionFrame) -> None:
        self.sent.append(frame)


@pytest.fixture
def buffer() -> ProposalBuffer:
    buffer = ProposalBuffer(vocab_size=100, max_depth=4)
    buffer.open(1, "r", 10, 7)
    return buffer


@pytest.fixture
def streams(buffer: ProposalBuffer) -> RouterStreams:
    return RouterStreams(buffer, SpeculationPolicy(), clock_ns=lambda: NOW_NS)


def proposal(position: int = 10, sent_at_ns: int = 0, draft_time_us: int = 0) -> Proposal:
    return Proposal(1, position, 7, (1, 2), "model", None, sent_at_ns, draft_time_us)


def receive(streams: RouterStreams, *proposals: Proposal, lost: tuple[int, ...] = ()) -> None:
    streams.received(Peer("r"), ProposalFrame(proposals, lost))


def test_frames_go_to_the_router_that_is_connected(streams: RouterStreams) -> None:
    one, other = Peer("one"), Peer("other")
    streams.connected(one)
    streams.connected(other)
    streams.send("one", FRAME)
    streams.send("nobody", FRAME)

    assert one.sent == [FRAME]
    assert not other.sent
    assert [streams.is_connected(name) for name in ("one", "other", "nobody")] == [
        True,
        True,
        False,
    ]


def test_routers_are_chosen_in_turn_of_those_that_are_connected(streams: RouterStreams) -> None:
    assert streams.choose_router() == ""
    one, other = Peer("one"), Peer("other")
    streams.connected(one)
    streams.connected(other)
    assert sorted(streams.choose_router() for _ in range(4)) == ["one", "one", "other", "other"]

    streams.disconnected(one)
    assert {streams.choose_router() for _ in range(4)} == {"other"}


def test_a_router_that_left_is_reported_once(streams: RouterStreams) -> None:
    peer = Peer("r")
    streams.connected(peer)
    assert streams.take_departed() == []
    streams.disconnected(peer)

    assert not streams.is_connected("r")
    assert streams.take_departed() == ["r"]
    assert streams.take_departed() == []
    streams.send("r", FRAME)
    assert not peer.sent


def test_a_router_that_replaces_its_stream_has_forgotten_the_old_ones_sessions(
    streams: RouterStreams,
) -> None:
    old, new = Peer("r"), Peer("r")
    streams.connected(old)
    streams.connected(new)
    assert streams.take_departed() == ["r"]

    streams.disconnected(old)  # the end of the old stream is noticed later, or never

    assert streams.is_connected("r")
    assert streams.take_departed() == []
    streams.send("r", FRAME)
    assert new.sent == [FRAME]
    assert streams.stats().num_routers == 1


def test_proposals_are_buffered_and_what_is_of_no_use_is_counted(
    streams: RouterStreams, buffer: ProposalBuffer
) -> None:
    useful = proposal()
    invalid = Proposal(1, 10, 7, (100,), "model")
    stale = Proposal(9, 10, 7, (1,), "model")
    receive(streams, useful, proposal(9), proposal(8), stale, invalid)

    assert buffer.peek(1) is useful
    stats = streams.stats()
    assert stats.num_proposals_late == 2
    assert stats.num_proposals_stale == 1
    assert stats.num_proposals_invalid == 1


def test_lost_sessions_are_reported_once_and_only_if_they_are_open(
    streams: RouterStreams, buffer: ProposalBuffer
) -> None:
    buffer.open(2, "r", 5, 5)
    receive(streams, lost=(1, 2, 2**63, *range(100, 10_000)))

    assert streams.take_lost() == [1, 2]
    assert streams.take_lost() == []


def test_a_router_does_not_speak_for_anothers_sessions(
    streams: RouterStreams, buffer: ProposalBuffer
) -> None:
    streams.received(Peer("other"), ProposalFrame((proposal(),), lost=(1,)))

    assert buffer.peek(1) is None
    assert streams.take_lost() == []
    assert streams.stats().num_proposals_stale == 1


def test_a_round_trip_is_split_into_drafting_and_the_rest(streams: RouterStreams) -> None:
    receive(streams, proposal(sent_at_ns=NOW_NS - 30_000_000, draft_time_us=20_000))

    stats = streams.stats()
    assert stats.draft_time.count == 1
    assert stats.draft_time.sum_s == pytest.approx(0.020)
    assert stats.relay_time.sum_s == pytest.approx(0.010)


def test_no_more_is_drafting_than_the_round_trip_took(streams: RouterStreams) -> None:
    receive(streams, proposal(sent_at_ns=NOW_NS - 30_000_000, draft_time_us=2**32 - 1))

    assert streams.stats().draft_time.sum_s == pytest.approx(0.030)
    assert streams.stats().relay_time.sum_s == 0


@pytest.mark.parametrize("sent_at_ns", [0, NOW_NS + 1, 2**64 - 1, NOW_NS - 11 * 10**9])
def test_impossible_round_trips_are_not_measured(streams: RouterStreams, sent_at_ns: int) -> None:
    receive(streams, proposal(sent_at_ns=sent_at_ns, draft_time_us=1))

    assert streams.stats().draft_time.count == 0
    assert streams.stats().relay_time.count == 0


def test_both_sides_counters_are_reported(streams: RouterStreams) -> None:
    streams.report_stats_of(lambda: TargetStats(num_steps=3, num_proposals_used=2))
    streams.connected(Peer("r"))
    receive(streams, proposal(9))
    stats = streams.stats()

    assert (stats.num_steps, stats.num_proposals_used) == (3, 2)
    assert (stats.num_proposals_late, stats.num_routers) == (1, 1)


def test_a_snapshot_does_not_change_later(streams: RouterStreams) -> None:
    sent_at_ns = NOW_NS - 1_000_000
    receive(streams, proposal(sent_at_ns=sent_at_ns, draft_time_us=1))
    stats = streams.stats()
    receive(streams, proposal(sent_at_ns=sent_at_ns, draft_time_us=1))

    assert stats.relay_time.count == 1


def test_the_policy_is_replaced(streams: RouterStreams) -> None:
    policy = SpeculationPolicy(is_enabled=False, max_depth=2, max_wait_ms=0.0)
    streams.configure(policy)

    assert streams.policy == policy


def test_a_policy_goes_no_deeper_than_the_engine_was_built_for(streams: RouterStreams) -> None:
    streams.configure(SpeculationPolicy(max_depth=64))  # that of a newer config's controller

    assert streams.policy.max_depth == 4


@pytest.mark.parametrize("wait_ms", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_wait_that_would_stop_the_engine_is_refused(
    streams: RouterStreams, wait_ms: float
) -> None:
    with pytest.raises(ProtocolError, match="max_wait_ms"):
        streams.configure(SpeculationPolicy(max_wait_ms=wait_ms))

    assert streams.policy == SpeculationPolicy()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_honest", [True, False])
def test_a_router_whose_drafts_lie_about_their_distributions_loses_trust(
    buffer: ProposalBuffer, is_honest: bool, is_late: bool
) -> None:
    """False alarms have a probability of one in a million, whatever the seed of the draft."""
    streams = RouterStreams(buffer, SpeculationPolicy())
    rng = np.random.default_rng(3)
    support = np.array([[4, 5, 6]], np.int32)
    claimed = np.array([[0.2, 0.3, 0.5]], np.float32)
    drawn_from = claimed[0] / claimed[0].sum(dtype=float) if is_honest else [0.8, 0.1, 0.1]
    for position in range(11, 1011):
        buffer.advance(1, (7,))
        token = int(rng.choice(support[0], p=drawn_from))
        q = TruncatedDistributions(support, claimed)
        receive(streams, Proposal(1, position - is_late, 7, (token,), "model", q))
    assert streams.trusts("r") == is_honest
    assert streams.trusts("another")


def test_an_honest_draft_that_draws_again_for_another_commit_is_trusted(
    buffer: ProposalBuffer,
) -> None:
    """Were only those counted that differ from the draw before, the unlikely would be too many."""
    streams = RouterStreams(buffer, SpeculationPolicy())
    rng = np.random.default_rng(5)
    ids, q = np.array([[4, 5]], np.int32), np.array([[0.9, 0.1]], np.float32)
    for position in range(11, 3011):
        buffer.advance(1, (7,))
        for commit in (1, 2):
            token = int(rng.choice(ids[0], p=q[0] / q[0].sum(dtype=float)))
            rows = TruncatedDistributions(ids, q)
            receive(streams, Proposal(1, position, 7, (token,), "model", rows, commit))
    assert streams.trusts("r")


def test_an_honest_draft_that_sends_again_what_it_has_is_trusted(buffer: ProposalBuffer) -> None:
    """Counted each time, a token that is a little unlikely would seem all but impossible."""
    streams = RouterStreams(buffer, SpeculationPolicy())
    rng = np.random.default_rng(4)
    ids = np.array([[4, 5, 6], [7, 8, 9]], np.int32)
    q = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], np.float32)
    for position in range(11, 211):
        buffer.advance(1, (7,))
        tokens = tuple(
            int(rng.choice(row, p=p / p.sum(dtype=float))) for row, p in zip(ids, q, strict=True)
        )
        whole = Proposal(1, position, 7, tokens, "model", TruncatedDistributions(ids, q))
        for num_tokens in (1, *[2] * 40):
            receive(streams, whole.prefix(num_tokens))
    assert streams.trusts("r")


def test_what_a_stream_has_brought_is_forgotten_with_it(buffer: ProposalBuffer) -> None:
    """Routers come under ever new names. Seen from outside: a draw sent again is a new one then."""
    streams = RouterStreams(buffer, SpeculationPolicy())
    unlikely = np.array([[0.02, 0.98]], np.float32)
    rows = TruncatedDistributions(np.array([[4, 5]], np.int32), unlikely)
    for _ in range(40):
        peer = Peer("r")
        streams.connected(peer)
        buffer.open(1, "r", 10, 7)
        receive(streams, Proposal(1, 10, 7, (4,), "model", rows))
        streams.disconnected(peer)
    assert not streams.trusts("r")


def test_the_timeline_names_the_sessions_of_what_comes_and_goes(buffer: ProposalBuffer) -> None:
    timeline, peer = RecordedTimeline(), Peer("r")
    streams = RouterStreams(buffer, SpeculationPolicy(), timeline=timeline)
    streams.connected(peer)
    streams.send("r", SessionFrame(commits=(Commit(1, 10, (5, 6), 3, sent_at_ns=77),)))
    streams.send("gone", SessionFrame(commits=(Commit(2, 10, (5,), 3, sent_at_ns=78),)))
    receive(streams, proposal(), proposal(draft_time_us=5), Proposal(9, 10, 7, (1,), "model"))

    arrived = {"session": 1, "at": 10, "tokens": 2, "became": "kept"}
    assert timeline.events == [
        (
            "commit sent",
            {"session": 1, "at": 10, "added": 2, "depth": 3, "sent_ns": 77},
        ),
        ("outcome buffered", arrived),
        ("answer buffered", arrived),
        ("outcome buffered", {"session": 9, "at": 10, "tokens": 1, "became": "stale"}),
    ]


def test_a_commit_is_written_down_before_it_leaves(buffer: ProposalBuffer) -> None:
    """Else the draft might write of it first."""
    timeline = RecordedTimeline()

    class Watching(Peer):
        def send(self, frame: SessionFrame) -> None:
            assert [name for name, _ in timeline.events] == ["commit sent"]
            super().send(frame)

    streams = RouterStreams(buffer, SpeculationPolicy(), timeline=timeline)
    peer = Watching("r")
    streams.connected(peer)
    streams.send("r", SessionFrame(commits=(Commit(1, 10, (5, 6), 3, sent_at_ns=77),)))

    assert len(peer.sent) == 1
