"""The target's end of the streams: proposals in, session news out."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from specray.config import MAX_WAIT_MS
from specray.errors import ProtocolError
from specray.target.buffer import ProposalBuffer, Verdict
from specray.target.direct import DirectPath
from specray.target.trust import RouterTrust
from specray.types import (
    Commit,
    Proposal,
    ProposalFrame,
    SessionFrame,
    SpeculationPolicy,
)
from specray.wire.server import Peer
from specray.wire.stats import TargetStats
from specray.wire.timeline import OFF, Timeline

_USED = (Verdict.KEPT, Verdict.LATE)  # judged by when they came, not by what they say

_T = TypeVar("_T")
Deliver = Callable[[Mapping[str, ProposalFrame]], None]
Direct = Callable[[Deliver], DirectPath]
_MOST_AT_ONCE = 128  # proposals; while they are taken in, the engine's thread may wait
_LONGEST_ROUND_TRIP_S = 10.0  # what a peer claims beyond that is not a measurement


class RouterStreams:
    """All routers' streams; called by the stream server's thread and by the scheduler's.

    Proposals go straight into the buffer. What the scheduler must react to (sessions that lost
    their draft, routers that came or went) is queued for it, so that only its own thread touches
    its sessions.
    """

    def __init__(
        self,
        buffer: ProposalBuffer,
        policy: SpeculationPolicy,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        timeline: Timeline = OFF,
        direct: Direct | None = None,
    ) -> None:
        """Takes what it feeds, and what it starts with.

        Args:
            buffer: where proposals go.
            policy: the live policy.
            clock_ns: monotonic.
            timeline: where what happens is written down.
            direct: how to speak to drafts that routers name; None: routers relay.
        """
        self.policy = policy
        self._make_direct = direct
        self._direct: DirectPath | None = None  # made when the first router names drafts
        self._timeline = timeline
        self._buffer = buffer
        self._clock_ns = clock_ns
        self._peers: dict[str, Peer[SessionFrame]] = {}
        self._num_chosen = 0  # routers, for requests that came through none
        self._lost: deque[int] = deque()
        self._departed: deque[str] = deque()
        self._arrivals = TargetStats()
        self._trust = RouterTrust(buffer.vocab_size)
        self._lock = threading.Lock()
        self._engine_stats: Callable[[], TargetStats] = TargetStats

    def report_stats_of(self, engine: Callable[[], TargetStats]) -> None:
        """Choose what takes a snapshot of the scheduler's counters; before the server starts."""
        self._engine_stats = engine

    # The stream server's thread.

    def connected(self, peer: Peer[SessionFrame]) -> None:
        """A router opened its stream; a second one of the same name replaces the first.

        What the first one carried is lost to the router, as if it had ended.
        """
        with self._lock:
            is_replaced = peer.name in self._peers
            self._peers[peer.name] = peer
        if is_replaced:
            self._depart(peer.name)

    def disconnected(self, peer: Peer[SessionFrame]) -> None:
        """A router's stream ended; its requests go on without, or find another."""
        with self._lock:
            if self._peers.get(peer.name) is not peer:
                return
            del self._peers[peer.name]
        self._depart(peer.name)

    def _depart(self, router: str) -> None:
        if self._direct is not None:
            self._direct.remove(router)
        self._trust.forget_proposals(router)
        self._departed.append(router)
        self._buffer.lose(router)
        self._buffer.wake()

    def received(self, peer: Peer[SessionFrame], frame: ProposalFrame) -> None:
        """A router's frame came in.

        Raises:
            ProtocolError: it names drafts, but this target was not told to speak to any.
        """
        if frame.drafts is not None:
            self._name_drafts(peer, frozenset(frame.drafts))
        self._take(peer.name, frame)

    def _name_drafts(self, peer: Peer[SessionFrame], drafts: frozenset[str]) -> None:
        if self._make_direct is None:
            raise ProtocolError(
                f"router {peer.name} names drafts, but speculation.data_path is relay here: deploy "
                "the same configuration on both sides"
            )
        if self._peers.get(peer.name) is not peer:
            return  # another has taken its place: nobody would take back what this one says
        if self._direct is None:
            self._direct = self._make_direct(self._take_direct)
        self._direct.name_drafts(peer.name, drafts)

    def _take_direct(self, frames: Mapping[str, ProposalFrame]) -> None:
        for router, frame in frames.items():
            self._take(router, frame)

    def _take(self, router: str, frame: ProposalFrame) -> None:
        """Proposals and losses came in."""
        now_ns = self._clock_ns()
        for proposals in _slices(frame.proposals):
            self._take_proposals(router, proposals, now_ns)
        # Without a session nothing grows, and no router speaks for another's.
        if frame.lost:
            self._lost.extend(self._buffer.lose(router, frame.lost))
            self._buffer.wake()

    def _take_proposals(self, router: str, proposals: Sequence[Proposal], now_ns: int) -> None:
        verdicts = self._buffer.offer_all(proposals, router)
        for proposal, verdict in zip(proposals, verdicts, strict=True):
            # Stale ones, too: those of a draft that is always too late are never anything else.
            if verdict is not Verdict.INVALID:
                self._time(proposal, now_ns)
            self._count(verdict)
            if self._timeline.is_on:
                self._write_arrival(proposal, verdict)
        used = [p for p, v in zip(proposals, verdicts, strict=True) if v in _USED]
        self._trust.observe(router, used)

    def _count(self, verdict: Verdict) -> None:
        if verdict is Verdict.LATE:
            self._arrivals.num_proposals_late += 1
        elif verdict is Verdict.STALE:
            self._arrivals.num_proposals_stale += 1
        elif verdict is Verdict.INVALID:
            self._arrivals.num_proposals_invalid += 1

    def _time(self, proposal: Proposal, now_ns: int) -> None:
        if proposal.draft_time_us == 0:
            return  # drafted ahead: nobody waited for it
        round_trip_s = (now_ns - proposal.commit_sent_at_ns) / 1e9
        if not 0 <= round_trip_s < _LONGEST_ROUND_TRIP_S:
            return
        draft_s = min(proposal.draft_time_us / 1e6, round_trip_s)
        self._arrivals.draft_time.observe(draft_s)
        self._arrivals.relay_time.observe(round_trip_s - draft_s)

    def _write_arrival(self, proposal: Proposal, verdict: Verdict) -> None:
        self._timeline.mark(
            "outcome buffered" if proposal.draft_time_us == 0 else "answer buffered",
            session=proposal.session_id,
            at=proposal.position,
            tokens=len(proposal.token_ids),
            became=verdict.value,
        )

    def configure(self, policy: SpeculationPolicy) -> None:
        """Replace the live policy; its depth goes as far as the engine was built for.

        Raises:
            ProtocolError: the longest wait is no number of milliseconds.
        """
        if not 0 <= policy.max_wait_ms <= MAX_WAIT_MS:  # nor not-a-number
            raise ProtocolError(
                f"max_wait_ms is {policy.max_wait_ms}; it lies between 0 and {MAX_WAIT_MS:g}"
            )
        self.policy = replace(policy, max_depth=min(policy.max_depth, self._buffer.max_depth))

    def stats(self) -> TargetStats:
        """Counters of both sides."""
        stats = self._engine_stats()
        stats.num_proposals_late = self._arrivals.num_proposals_late
        stats.num_proposals_stale = self._arrivals.num_proposals_stale
        stats.num_proposals_invalid = self._arrivals.num_proposals_invalid
        stats.draft_time = self._arrivals.draft_time.copy()
        stats.relay_time = self._arrivals.relay_time.copy()
        stats.num_routers = len(self._peers)
        stats.direct = self._direct.stats() if self._direct is not None else None
        return stats

    # The scheduler's thread.

    def choose_router(self) -> str:
        """A router for a request that came through none: each in turn; empty if there is none."""
        with self._lock:
            routers = sorted(self._peers)
        self._num_chosen += 1
        return routers[self._num_chosen % len(routers)] if routers else ""

    def is_connected(self, router: str) -> bool:
        """Whether a frame to this router would leave."""
        return router in self._peers

    def send(self, router: str, frame: SessionFrame) -> None:
        """Send if the router is connected; never blocks."""
        peer = self._peers.get(router)
        if peer is not None:
            if self._timeline.is_on:  # before they leave: they may arrive at once
                self._write_departures(frame.commits)
            if self._direct is not None and self._direct.serves(router):
                self._direct.send(router, frame)
            else:
                peer.send(frame)

    def take_lost(self) -> list[int]:
        """Sessions whose draft is gone, since the last call."""
        return _drain(self._lost)

    def take_departed(self) -> list[str]:
        """Routers whose stream ended, since the last call."""
        return _drain(self._departed)

    def trusts(self, router: str) -> bool:
        """See `RouterTrust.trusts`."""
        return self._trust.trusts(router)

    def _write_departures(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            self._timeline.mark(
                "commit sent",
                session=commit.session_id,
                at=commit.position,
                added=len(commit.token_ids),
                depth=commit.depth,
                sent_ns=commit.sent_at_ns,
            )


def _slices(proposals: Sequence[Proposal]) -> Iterator[Sequence[Proposal]]:
    return (proposals[i : i + _MOST_AT_ONCE] for i in range(0, len(proposals), _MOST_AT_ONCE))


def _drain(queue: deque[_T]) -> list[_T]:
    return [queue.popleft() for _ in range(len(queue))]
