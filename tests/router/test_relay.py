import asyncio
import contextlib
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from specray.errors import ProtocolError
from specray.router.relay import Relay
from specray.router.switch import Switch
from specray.router.watch import Accepted
from specray.target.buffer import ProposalBuffer, Verdict
from specray.target.direct import DirectPath
from specray.target.service import RouterStreams
from specray.types import (
    Commit,
    DataPath,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    SpeculationPolicy,
)
from specray.wire.client import get_stats
from specray.wire.codec import encode_proposal_frame, encode_session_frame
from specray.wire.server import Peer, serve_draft, serve_target
from specray.wire.stats import RelayStats, Traffic
from tests.wire.fakes import PATIENCE_S, RecordingControl, RecordingHandler, RecordingPeer

ROUTER = "router-1"
HOST = "127.0.0.1"


class FakeTarget:
    """A target whose engine is the test."""

    def __init__(self) -> None:
        self.handler: RecordingHandler[ProposalFrame, SessionFrame] = RecordingHandler()
        self.server = serve_target(self.handler, RecordingControl(), HOST)
        self.address = self.server.address

    def attach(self) -> None:
        self._peer = self.handler.peer()

    def send(self, frame: SessionFrame) -> None:
        self._peer.send(frame)

    def frame(self) -> ProposalFrame:
        return self.handler.frame()


class Proposals(ProposalBuffer):
    """Hands over what is offered."""

    def __init__(self) -> None:
        super().__init__(100, 4)
        self.offered: queue.SimpleQueue[Proposal] = queue.SimpleQueue()

    def offer_all(self, proposals: Sequence[Proposal], router: str) -> list[Verdict]:
        for proposal in proposals:
            self.offered.put(proposal)
        return [Verdict.KEPT] * len(proposals)

    def lose(self, router: str, session_ids: Collection[int] | None = None) -> list[int]:
        return list(session_ids or ())


class Streams(RouterStreams):
    """Tells the test who has come and gone."""

    def __init__(self, buffer: ProposalBuffer, stall_timeout_s: float) -> None:
        direct = partial(DirectPath, "a target", stall_timeout_s)
        super().__init__(buffer, SpeculationPolicy(), direct=direct)
        self.events: RecordingHandler[ProposalFrame, SessionFrame] = RecordingHandler()

    def connected(self, peer: Peer[SessionFrame]) -> None:
        super().connected(peer)
        self.events.connected(peer)

    def disconnected(self, peer: Peer[SessionFrame]) -> None:
        super().disconnected(peer)
        self.events.disconnected(peer)


class DirectTarget:
    """A target with streams to drafts of its own; the test is its engine too."""

    def __init__(self, stall_timeout_s: float) -> None:
        self._buffer = Proposals()
        self._streams = Streams(self._buffer, stall_timeout_s)
        self.handler = self._streams.events
        self.server = serve_target(self._streams, self._streams, HOST)
        self.address = self.server.address

    def attach(self) -> None:
        self.handler.peer()

    def send(self, frame: SessionFrame) -> None:
        self._streams.send(ROUTER, frame)

    def frame(self) -> ProposalFrame:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if lost := self._streams.take_lost():
                return ProposalFrame(lost=tuple(lost))
            with contextlib.suppress(queue.Empty):
                return ProposalFrame((self._buffer.offered.get(timeout=0.01),))
        raise AssertionError("nothing came from the drafts")


class FakeDraft:
    """A draft whose engine is the test."""

    def __init__(self) -> None:
        self.handler: RecordingHandler[SessionFrame, ProposalFrame] = RecordingHandler()
        self.server = serve_draft(self.handler, HOST)
        self.address = self.server.address

    def send(self, frame: ProposalFrame) -> None:
        """To whoever sent the latest frame."""
        self._peer.send(frame)

    def frame(self) -> SessionFrame:
        self._peer, frame = self.handler.news()
        return frame


class Network:
    """Targets, drafts and what is between them, all on loopback."""

    def __init__(self, data_path: DataPath, stall_timeout_s: float) -> None:
        self.relay = Relay(ROUTER, stall_timeout_s, data_path)
        self.relay.start()
        self.is_direct = data_path == "direct"
        self._stall_timeout_s = stall_timeout_s
        self.targets: list[FakeTarget | DirectTarget] = []
        self.drafts: list[FakeDraft] = []

    def grow(self, num_targets: int = 0, num_drafts: int = 0) -> None:
        self.drafts += [FakeDraft() for _ in range(num_drafts)]
        targets = [self._make_target() for _ in range(num_targets)]
        self.targets += targets
        self.list_all()
        for target in targets:
            target.attach()
        self.until(lambda stats: stats.connected_targets == _addresses(self.targets))
        self.until(lambda stats: stats.connected_drafts == _addresses(self.drafts))

    def list_all(self) -> None:
        self.relay.update_replicas(_addresses(self.targets), _addresses(self.drafts))

    def stats(self) -> RelayStats:
        """Of the switches: the router's, or all targets'."""
        stats = asyncio.run(self.relay.snapshot())
        if not self.is_direct:
            return stats
        assert stats.connected_drafts is None
        switches = [asyncio.run(get_stats(target.address)).direct for target in self.targets]
        known = [switch for switch in switches if switch is not None]
        connected = {draft for switch in known for draft in switch.connected_drafts or ()}
        return RelayStats(
            stats.connected_targets,
            tuple(sorted(connected)) if len(known) == len(switches) else None,
            dict(sum((Counter(switch.open_sessions) for switch in known), Counter())),
            sum(switch.num_homeless for switch in known),
            sum((Counter(switch.fallbacks) for switch in known), Counter()),
            *(_total([s.to_drafts for s in known]), _total([s.to_targets for s in known])),
        )

    def until(self, holds: Callable[[RelayStats], bool]) -> RelayStats:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(stats := self.stats()):
            assert time.monotonic() < deadline, stats
        return stats

    def stop(self) -> None:
        self.relay.stop()
        for replica in (*self.targets, *self.drafts):
            replica.server.stop(0)

    def _make_target(self) -> FakeTarget | DirectTarget:
        return DirectTarget(self._stall_timeout_s) if self.is_direct else FakeTarget()


def _total(directions: Sequence[Traffic]) -> Traffic:
    total = Traffic()
    for one in directions:
        total.num_frames += one.num_frames
        total.num_bytes += one.num_bytes
        total.hop_time.count += one.hop_time.count
    return total


def _addresses(replicas: Sequence[FakeTarget | DirectTarget | FakeDraft]) -> tuple[str, ...]:
    return tuple(sorted(replica.address for replica in replicas))


@pytest.fixture(params=["relay", "direct"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    yield from _running(Network(request.param, stall_timeout_s=30.0))


@pytest.fixture
def relayed() -> Iterator[Network]:
    yield from _running(Network("relay", stall_timeout_s=30.0))


@pytest.fixture
def direct() -> Iterator[Network]:
    yield from _running(Network("direct", stall_timeout_s=30.0))


@pytest.fixture(params=["relay", "direct"])
def hasty(request: pytest.FixtureRequest) -> Iterator[Network]:
    """A network that takes a draft for stalled after a twentieth of a second."""
    yield from _running(Network(request.param, stall_timeout_s=0.05))


def _running(network: Network) -> Iterator[Network]:
    yield network
    network.stop()


def opens(*session_ids: int) -> SessionFrame:
    sampling = SamplingSettings()
    return SessionFrame(
        opens=tuple(OpenSession(number, (1, 2, 3), 3, sampling, 4) for number in session_ids)
    )


def commits(*session_ids: int, depth: int = 4) -> SessionFrame:
    return SessionFrame(commits=tuple(Commit(n, 3, (7, 8), depth, 99) for n in session_ids))


def answer(commit: Commit) -> Proposal:
    return Proposal(commit.session_id, 5, 8, (9, 10), "model", None, commit.sent_at_ns, 250)


def test_commits_go_up_and_proposals_come_back_with_the_targets_ids(network: Network) -> None:
    network.grow(num_targets=2, num_drafts=1)
    (draft,) = network.drafts
    for target in network.targets:
        target.send(opens(5))
        draft.frame()
    for target in network.targets:
        target.send(commits(5))
        (commit,) = draft.frame().commits
        assert (commit.position, commit.token_ids, commit.depth) == (3, (7, 8), 4)
        draft.send(ProposalFrame((answer(commit),)))
        (proposal,) = target.frame().proposals
        assert (proposal.session_id, proposal.token_ids) == (5, (9, 10))
        assert (proposal.commit_sent_at_ns, proposal.draft_time_us) == (99, 250)


def test_sessions_spread(network: Network) -> None:
    network.grow(num_targets=2, num_drafts=2)
    for target in network.targets:
        target.send(opens(1, 2))
        for draft in network.drafts:
            assert len(draft.frame().opens) == 1

    assert network.stats().open_sessions == {draft.address: 2 for draft in network.drafts}


def test_the_traffic_is_counted(network: Network) -> None:
    """Where it goes over the wire: a target's news for two drafts are two frames."""
    network.grow(num_targets=2, num_drafts=2)
    told, answers = [], []
    for target in network.targets:
        target.send(opens(1, 2))
        told += [draft.frame() for draft in network.drafts]
        target.send(commits(1, 2))
        latest = [draft.frame() for draft in network.drafts]
        told += latest
        answers.append(ProposalFrame((answer(latest[0].commits[0]),)))
        network.drafts[0].send(answers[-1])
        assert target.frame().proposals

    stats = network.stats()
    assert stats.to_drafts.num_frames == len(told) == 8
    assert stats.to_drafts.num_bytes == sum(len(encode_session_frame(frame)) for frame in told)
    assert stats.to_drafts.hop_time.count == 4
    assert stats.to_targets.num_frames == stats.to_targets.hop_time.count == len(answers) == 2
    assert stats.to_targets.num_bytes == sum(len(encode_proposal_frame(frame)) for frame in answers)


def test_a_dead_drafts_sessions_reopen_on_the_other(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=2)
    (target,), (first, second) = network.targets, network.drafts
    target.send(opens(1, 2))
    first.frame(), second.frame()

    first.server.stop(0)
    (lost,) = target.frame().lost
    target.send(opens(lost))

    assert len(second.frame().opens) == 1
    stats = network.stats()
    assert stats.open_sessions == {second.address: 2}
    assert stats.fallbacks["draft_died"] == 1


def test_an_evicted_session_is_passed_on_as_lost(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    (target,), (draft,) = network.targets, network.drafts
    target.send(opens(4))
    (opened,) = draft.frame().opens
    draft.send(ProposalFrame(lost=(opened.session_id,)))

    assert target.frame().lost == (4,)
    assert network.stats().fallbacks["draft_evicted"] == 1


def test_a_stalled_draft_loses_its_sessions_and_comes_back_on_trial(hasty: Network) -> None:
    hasty.grow(num_targets=1, num_drafts=2)
    (target,) = hasty.targets
    target.send(opens(1))
    stats = hasty.until(lambda stats: any(stats.open_sessions.values()))
    mute, other = sorted(hasty.drafts, key=lambda d: -stats.open_sessions.get(d.address, 0))
    mute.frame()
    target.send(commits(1))
    mute.frame()

    assert target.frame().lost == (1,)
    mute.handler.gone()
    hasty.until(lambda stats: mute.address in (stats.connected_drafts or ()))
    target.send(opens(1, 2, 3))

    assert len(other.frame().opens) == 2
    stats = hasty.until(lambda stats: sum(stats.open_sessions.values()) == 3)
    assert stats.open_sessions == {mute.address: 1, other.address: 2}
    assert stats.fallbacks["draft_stalled"] == 1


def test_a_draft_that_joins_is_given_a_session(hasty: Network) -> None:
    hasty.grow(num_targets=1, num_drafts=1)
    (target,), (first,) = hasty.targets, hasty.drafts
    target.send(opens(1, 2, 3))
    opened = [session.session_id for session in first.frame().opens]
    hasty.grow(num_drafts=1)
    _, second = hasty.drafts
    asked = commits(1, 2, 3)  # by steps that wait for nothing
    asked = replace(asked, commits=tuple(replace(c, is_unawaited=True) for c in asked.commits))
    target.send(asked)

    (lost,) = target.frame().lost
    closes = first.frame().closes or first.frame().closes  # with the commits or behind them
    assert closes == (opened[lost - 1],)
    target.send(opens(lost))

    assert len(second.frame().opens) == 1
    stats = hasty.until(lambda stats: stats.open_sessions.get(second.address) == 1)
    assert stats.open_sessions[first.address] == 2
    assert stats.fallbacks["evened_out"] == 1


def test_homeless_sessions_reopen_when_a_draft_appears(network: Network) -> None:
    network.grow(num_targets=1)
    (target,) = network.targets
    target.send(opens(6))
    network.until(lambda stats: stats.num_homeless == 1)

    network.grow(num_drafts=1)

    assert target.frame().lost == (6,)
    target.send(opens(6))
    assert len(network.drafts[0].frame().opens) == 1


def test_a_dead_targets_sessions_are_closed_on_the_draft(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    (target,), (draft,) = network.targets, network.drafts
    target.send(opens(1, 2))
    opened = {session.session_id for session in draft.frame().opens}

    target.server.stop(0)

    if network.is_direct:
        draft.handler.gone()  # with the stream, and so with its sessions
    else:
        assert set(draft.frame().closes) == opened
        assert network.stats().open_sessions == {draft.address: 0}


def test_an_unlisted_draft_is_closed_and_its_sessions_move(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=2)
    (target,), (leaving, staying) = network.targets, network.drafts
    target.send(opens(1, 2))
    leaving.frame(), staying.frame()

    network.drafts.remove(leaving)
    network.list_all()

    leaving.handler.gone()
    target.send(opens(*target.frame().lost))
    assert len(staying.frame().opens) == 1
    assert network.stats().connected_drafts == (staying.address,)
    leaving.server.stop(0)


def test_listing_the_same_replicas_again_changes_nothing(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    network.list_all()
    network.list_all()
    network.targets[0].send(opens(1))

    assert len(network.drafts[0].frame().opens) == 1
    assert network.drafts[0].handler.num_gone == 0


def test_a_stream_that_broke_is_opened_again(relayed: Network) -> None:
    relayed.grow(num_targets=1, num_drafts=1)
    (target,) = relayed.targets
    target.handler.reject_frames = True
    target.send(opens(1))
    (opened,) = relayed.drafts[0].frame().opens
    relayed.drafts[0].send(ProposalFrame(lost=(opened.session_id,)))

    target.handler.gone()
    target.handler.reject_frames = False
    target.attach()
    target.send(opens(2))
    assert len(relayed.drafts[0].frame().opens) == 1


def test_who_watches_sees_what_is_accepted_from_then_on(relayed: Network) -> None:
    relayed.grow(num_targets=1, num_drafts=1)
    (target,), (draft,) = relayed.targets, relayed.drafts
    with relayed.relay.watch("r") as watch:
        relayed.stats()  # the watch has begun
        opened = OpenSession(5, (1, 2, 3), 3, SamplingSettings(), 4, request_id="r")
        target.send(SessionFrame(opens=(opened,)))
        draft.frame()
        accepted = (Accepted(5, 1, "model"),)
        target.send(SessionFrame(commits=(Commit(5, 5, (9, 11), 4, 100, accepted),)))
        draft.frame()
        relayed.stats()  # the frame has been seen by now, not only sent
        assert watch.take() == [Accepted(2, 1, "model")]
    relayed.stats()
    target.send(SessionFrame(closes=(5,)))
    draft.frame()
    assert not watch.is_closed


def test_stop_ends_every_stream_and_may_be_repeated(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    network.relay.stop()
    network.relay.stop()

    network.targets[0].handler.gone()
    network.drafts[0].handler.gone()
    assert not network.stats().connected_drafts


def test_a_target_has_no_drafts_but_those_of_routers_that_are_there(direct: Network) -> None:
    direct.grow(num_targets=1, num_drafts=1)
    (target,), (draft,) = direct.targets, direct.drafts
    target.send(opens(1))
    draft.frame()
    direct.relay.stop()

    draft.handler.gone()
    target.send(opens(2))
    other = Relay("another", 30.0, "direct")
    other.start()
    other.update_replicas([target.address], [draft.address])
    target.attach()
    draft.handler.peer(), draft.handler.peer()

    while draft.handler.num_frames:
        assert not draft.frame().opens  # but perhaps the end of the first
    other.stop()


def test_what_a_target_announces_before_it_knows_the_drafts_is_announced_again() -> None:
    target, draft = FakeTarget(), FakeDraft()
    relay = Relay(ROUTER, 30.0, "direct")
    relay.start()
    relay.update_replicas([target.address], [draft.address])
    target.attach()
    assert target.frame().drafts == (draft.address,)
    target.send(opens(3))

    assert target.frame().lost == (3,)
    relay.update_replicas([target.address], [])
    assert target.frame().drafts == ()
    relay.stop()
    target.server.stop(0)
    draft.server.stop(0)


def test_drafts_are_named_to_no_target_that_is_to_use_relays() -> None:
    streams = RouterStreams(Proposals(), SpeculationPolicy())
    with pytest.raises(ProtocolError, match="data_path is relay"):
        streams.received(RecordingPeer(ROUTER), ProposalFrame(drafts=("d:1",)))


def test_watching_goes_on_after_a_stalled_draft_that_is_unlisted_just_then() -> None:
    async def scenario() -> None:
        now = [0.0]
        switch = Switch("router-1", 0.04, lambda _: None, lambda: now[0])
        switch.update(frozenset({"127.0.0.1:1"}))
        switch._draft_up("127.0.0.1:1")
        switch.from_target("t", opens(1))
        switch.from_target("t", commits(1))
        switch.start()
        await asyncio.sleep(0)
        switch.update(frozenset())  # its sessions go when its stream has closed
        now[0] = 1.0
        await asyncio.sleep(0.05)
        assert switch._watching is not None
        assert not switch._watching.done()
        assert switch.snapshot().fallbacks["draft_stalled"] == 1
        switch._watching.cancel()

    asyncio.run(scenario())
