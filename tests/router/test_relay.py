import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from specray.router.relay import Relay, _Switch
from specray.router.stats import RelayStats
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
)
from specray.wire.server import serve_draft, serve_target
from tests.wire.fakes import PATIENCE_S, RecordingControl, RecordingHandler

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


class FakeDraft:
    """A draft whose engine is the test."""

    def __init__(self) -> None:
        self.handler: RecordingHandler[SessionFrame, ProposalFrame] = RecordingHandler()
        self.server = serve_draft(self.handler, HOST)
        self.address = self.server.address

    def attach(self) -> None:
        self._peer = self.handler.peer()

    def send(self, frame: ProposalFrame) -> None:
        self._peer.send(frame)

    def frame(self) -> SessionFrame:
        return self.handler.frame()


class Network:
    """Targets, drafts and the relay between them, all on loopback."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.targets: list[FakeTarget] = []
        self.drafts: list[FakeDraft] = []

    def grow(self, num_targets: int = 0, num_drafts: int = 0) -> None:
        drafts = [FakeDraft() for _ in range(num_drafts)]
        targets = [FakeTarget() for _ in range(num_targets)]
        self.drafts += drafts
        self.targets += targets
        self.list_all()
        for replica in (*drafts, *targets):
            replica.attach()
        self.until(
            lambda stats: (
                {replica.address for replica in (*drafts, *targets)}
                <= {*stats.connected_drafts, *stats.connected_targets}
            )
        )

    def list_all(self) -> None:
        self.relay.update_replicas(
            [target.address for target in self.targets], [draft.address for draft in self.drafts]
        )

    def until(self, holds: Callable[[RelayStats], bool]) -> RelayStats:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(stats := self.relay.snapshot()):
            assert time.monotonic() < deadline, stats
        return stats

    def stop(self) -> None:
        self.relay.stop()
        for replica in (*self.targets, *self.drafts):
            replica.server.stop(0)


@pytest.fixture
def network() -> Iterator[Network]:
    relay = Relay("router-1", stall_timeout_s=30.0)
    relay.start()
    network = Network(relay)
    yield network
    network.stop()


@pytest.fixture
def hasty() -> Iterator[Network]:
    """A network that takes a draft for stalled after a twentieth of a second."""
    relay = Relay("router-1", stall_timeout_s=0.05)
    relay.start()
    network = Network(relay)
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


def test_sessions_spread_and_the_traffic_is_counted(network: Network) -> None:
    network.grow(num_targets=2, num_drafts=2)
    for target in network.targets:
        target.send(opens(1, 2))
        for draft in network.drafts:
            assert len(draft.frame().opens) == 1

    stats = network.relay.snapshot()

    assert stats.open_sessions == {draft.address: 2 for draft in network.drafts}
    assert stats.connected_targets == tuple(sorted(t.address for t in network.targets))
    assert stats.to_drafts.num_frames == stats.to_drafts.hop_time.count == 2
    assert stats.to_drafts.num_bytes > 2 * len("two frames")


def test_a_dead_drafts_sessions_reopen_on_the_other(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=2)
    (target,), (first, second) = network.targets, network.drafts
    target.send(opens(1, 2))
    first.frame(), second.frame()

    first.server.stop(0)
    (lost,) = target.frame().lost
    target.send(opens(lost))

    assert len(second.frame().opens) == 1
    stats = network.relay.snapshot()
    assert stats.open_sessions == {second.address: 2}
    assert stats.fallbacks["draft_died"] == 1


def test_an_evicted_session_is_passed_on_as_lost(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    (target,), (draft,) = network.targets, network.drafts
    target.send(opens(4))
    (opened,) = draft.frame().opens
    draft.send(ProposalFrame(lost=(opened.session_id,)))

    assert target.frame().lost == (4,)
    assert network.relay.snapshot().fallbacks["draft_evicted"] == 1


def test_a_stalled_draft_loses_its_sessions_and_comes_back_on_trial(hasty: Network) -> None:
    hasty.grow(num_targets=1, num_drafts=2)
    (target,), (mute, other) = hasty.targets, sorted(hasty.drafts, key=lambda d: d.address)
    target.send(opens(1))
    mute.frame()
    target.send(commits(1))
    mute.frame()

    assert target.frame().lost == (1,)
    mute.handler.gone()
    mute.attach()  # it accepts a new stream, so it is connected again
    hasty.until(lambda stats: mute.address in stats.connected_drafts)
    target.send(opens(1, 2, 3))

    assert len(other.frame().opens) == 2
    stats = hasty.until(lambda stats: sum(stats.open_sessions.values()) == 3)
    assert stats.open_sessions == {mute.address: 1, other.address: 2}
    assert stats.fallbacks["draft_stalled"] == 1


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

    assert set(draft.frame().closes) == opened
    assert network.relay.snapshot().open_sessions == {draft.address: 0}


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
    assert network.relay.snapshot().connected_drafts == (staying.address,)
    leaving.server.stop(0)


def test_listing_the_same_replicas_again_changes_nothing(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    network.list_all()
    network.list_all()
    network.targets[0].send(opens(1))

    assert len(network.drafts[0].frame().opens) == 1
    assert network.drafts[0].handler.num_gone == 0


def test_a_stream_that_broke_is_opened_again(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    (target,) = network.targets
    target.handler.reject_frames = True
    target.send(opens(1))
    (opened,) = network.drafts[0].frame().opens
    network.drafts[0].send(ProposalFrame(lost=(opened.session_id,)))

    target.handler.gone()
    target.handler.reject_frames = False
    target.attach()
    target.send(opens(2))
    assert len(network.drafts[0].frame().opens) == 1


def test_stop_ends_every_stream_and_may_be_repeated(network: Network) -> None:
    network.grow(num_targets=1, num_drafts=1)
    network.relay.stop()
    network.relay.stop()

    network.targets[0].handler.gone()
    network.drafts[0].handler.gone()
    assert network.relay.snapshot().connected_drafts == ()


def test_watching_goes_on_after_a_stalled_draft_that_is_unlisted_just_then() -> None:
    async def scenario() -> None:
        now = [0.0]
        switch = _Switch("router-1", 0.04, lambda: now[0])
        switch.update(frozenset(), frozenset({"127.0.0.1:1"}))
        switch._draft_up("127.0.0.1:1")
        switch._table.from_target("t", opens(1))
        switch._table.from_target("t", commits(1))
        switch.watch()
        (watching,) = switch._tasks
        await asyncio.sleep(0)
        switch._drafts.pop("127.0.0.1:1")  # unlisted; its sessions go when its stream has closed
        now[0] = 1.0
        await asyncio.sleep(0.05)
        assert not watching.done()
        watching.cancel()

    asyncio.run(scenario())
