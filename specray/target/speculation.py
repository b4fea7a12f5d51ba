"""The speculation of one engine: which proposals a step verifies, and what drafts are told.

Knows nothing of vLLM; `scheduler` calls it, from the engine's thread only.
"""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from specray.control.planner import PROBE_DEPTH, Offer, Planner
from specray.target.buffer import ProposalBuffer
from specray.target.patience import Patience
from specray.target.session import Session
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    SessionFrame,
    Source,
    SourceStats,
    SpeculationPolicy,
)
from specray.wire.stats import TargetStats


class Streams(Protocol):
    """The way to the routers; see `service.RouterStreams`."""

    policy: SpeculationPolicy

    def is_connected(self, router: str) -> bool:
        """Whether a frame to this router would leave."""

    def send(self, router: str, frame: SessionFrame) -> None:
        """Send if the router is connected; never blocks."""

    def trusts(self, router: str) -> bool:
        """Whether the distributions that come from this router may be used."""

    def take_lost(self) -> list[int]:
        """Sessions whose draft is gone, since the last call."""

    def take_departed(self) -> list[str]:
        """Routers whose stream ended, since the last call."""


@dataclass(slots=True)
class _Outgoing:
    opens: list[OpenSession] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)


class Speculation:
    """Sessions, their proposals and the counters of one engine."""

    def __init__(
        self,
        buffer: ProposalBuffer,
        streams: Streams,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer = buffer
        self._streams = streams
        self._clock = clock
        self._planner = Planner()
        self._patience = Patience()
        self._sessions: dict[int, Session] = {}
        self._outgoing: dict[str, _Outgoing] = defaultdict(_Outgoing)
        self._stats = TargetStats()

    # The life of a session.

    def open(self, session: Session) -> None:
        """Announce a request, so that its draft's prefill overlaps the target's."""
        self._note_losses()  # or a departure of before would be taken for one after
        self._sessions[session.session_id] = session
        length = len(session.token_ids)
        last_token_id = session.token_ids[length - 1 :][0]
        self._buffer.open(session.session_id, session.router, length, last_token_id)
        self._announce(session, length)
        self.flush()

    def close(self, session_id: int) -> None:
        """Forget a request that has finished or was aborted; unknown ones are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._buffer.close(session_id)
        if session.is_announced:
            self._outgoing[session.router].closes.append(session_id)

    def flush(self) -> None:
        """Send what has gathered, one frame per router."""
        for router, out in self._outgoing.items():
            frame = SessionFrame(tuple(out.opens), tuple(out.commits), tuple(out.closes))
            self._streams.send(router, frame)
        self._outgoing.clear()

    # Before a step.

    def propose(
        self, decoding: Sequence[int], num_others: int, *, may_wait: bool
    ) -> dict[int, Proposal]:
        """The proposals that the coming step verifies, cut to the depths that pay.

        May block while proposals are due that are worth waiting for, all requests together:
        a deadline for each would split the batch into cohorts and multiply the steps.

        Args:
            decoding: Sessions whose next step is a decode step.
            num_others: Further requests in that step.
            may_wait: Whether the step may be held back at all.
        """
        self._note_losses()
        sessions = [self._sessions[i] for i in decoding if i in self._sessions]
        if may_wait:
            self._wait_for_due(sessions, num_others)
        taken = [(session, self._take(session)) for session in sessions]
        ready = [(session, proposal) for session, proposal in taken if proposal is not None]
        offers = [self._offer(session, len(proposal.token_ids)) for session, proposal in ready]
        plan = self._planner.plan(offers, num_others + len(sessions) - len(ready))
        chosen = {}
        for (session, proposal), depth, offer in zip(ready, plan.depths, offers, strict=True):
            if self._planner.is_probing:
                depth = max(depth, min(PROBE_DEPTH, offer.max_depth))
            if depth > 0:
                is_trusted = session.uses_distributions and self._streams.trusts(session.router)
                chosen[session.session_id] = _cut(proposal, depth, is_trusted)
        self._stats.num_proposals_used += len(chosen)
        return chosen

    # After a step.

    def observe_verification(
        self, session_id: int, source: Source, num_proposed: int, num_accepted: int
    ) -> None:
        """Learn from what a verification accepted."""
        session = self._sessions.get(session_id)
        if session is not None:
            acceptance = session.acceptances[source]
            self._planner.observe_verification(acceptance, source, num_proposed, num_accepted)
        stats = self._stats.sources.setdefault(source, SourceStats())
        stats.num_proposed += num_proposed
        stats.num_accepted += num_accepted
        _count_positions(stats.proposed_per_position, num_proposed)
        _count_positions(stats.accepted_per_position, num_accepted)

    def observe_step(
        self, num_tokens: int, num_requests: int, num_committed: int, decode_s: float | None
    ) -> None:
        """Learn from a finished step; `decode_s` is None when it held prefill."""
        self._stats.num_steps += 1
        self._stats.num_request_steps += num_requests
        self._stats.num_committed += num_committed
        if decode_s is not None:
            self._stats.step_time.observe(decode_s)
            self._planner.observe_step(num_tokens, decode_s)

    def commit(self, lengths_before: Mapping[int, int], num_others: int) -> None:
        """Tell the drafts what was added, and how deep the next proposals should be.

        Args:
            lengths_before: Session -> its tokens before the step, for those that got any.
            num_others: Further requests that decode.
        """
        self._note_losses()
        sessions = [self._sessions[i] for i in lengths_before if i in self._sessions]
        offers = [self._offer(session, session.max_depth) for session in sessions]
        depths = self._planner.wanted_depths(
            offers, num_others, self._patience.expected_wait_s(self._max_wait_s())
        )
        for session, depth in zip(sessions, depths, strict=True):
            session.wanted_depth = depth
            self._commit(session, lengths_before[session.session_id])
        self.flush()

    def stats(self) -> TargetStats:
        """A snapshot of the counters; called on the stream server's thread."""
        now = self._stats
        sources = now.sources.copy()  # in one piece: the engine's thread may be adding one
        return replace(
            now,
            sources={source: copy.deepcopy(counts) for source, counts in sources.items()},
            step_time=now.step_time.copy(),
            wait_time=now.wait_time.copy(),
            num_open_sessions=len(self._sessions),
        )

    def _take(self, session: Session) -> Proposal | None:
        arrival = self._buffer.take(session.session_id)
        if arrival is not None:
            session.source = arrival.proposal.source
            self._patience.hear_of(session)
        is_covered = self._buffer.is_covered(session.session_id)
        if session.is_due and (is_covered or arrival is not None):
            arrived = session.committed_at if arrival is None else arrival.at
            self._patience.observe_answer(session, arrived)
        elif session.is_due:
            self._stats.num_misses += 1
        session.is_due = False
        return arrival and arrival.proposal

    def _offer(self, session: Session, num_tokens: int) -> Offer:
        policy = self._streams.policy
        cap = session.cap(policy.max_depth) if policy.is_enabled else 0
        acceptance = session.acceptances[session.source]
        return Offer(acceptance, session.source, min(cap, num_tokens))

    # Waiting for proposals.

    def _wait_for_due(self, sessions: Sequence[Session], num_others: int) -> None:
        missing = [s for s in sessions if s.is_due and not self._buffer.is_settled(s.session_id)]
        for session in missing:
            if self._buffer.take_sign_of_life(session.session_id):
                self._patience.hear_of(session)  # too late for its step, but it answers
        awaited = [s for s in missing if self._patience.has_left_for(s)]
        if not awaited:
            return
        started = self._clock()
        deadline = self._patience.deadline(awaited, self._max_wait_s())
        if deadline <= started or not self._is_worth_waiting(sessions, awaited, num_others):
            return
        self._buffer.wait_for([s.session_id for s in awaited], deadline)
        silent = [s for s in awaited if not self._buffer.is_settled(s.session_id)]
        self._patience.observe_wait(awaited, silent, deadline)
        self._stats.wait_time.observe(self._clock() - started)

    def _is_worth_waiting(
        self, sessions: Sequence[Session], awaited: Sequence[Session], num_others: int
    ) -> bool:
        if self._planner.is_probing:
            return True
        here = [self._offer(s, self._num_here(s)) for s in sessions]
        awaited_ids = {session.session_id for session in awaited}
        soon = [
            self._offer(s, s.wanted_depth) if s.session_id in awaited_ids else offer
            for s, offer in zip(sessions, here, strict=True)
        ]
        elapsed_s = self._clock() - max(session.committed_at for session in awaited)
        left_s = max(0.0, self._patience.expected_wait_s(self._max_wait_s()) - elapsed_s)
        now = self._planner.plan(here, num_others)
        later = self._planner.plan(soon, num_others, left_s)
        return later.goodput > now.goodput

    def _max_wait_s(self) -> float:
        return self._streams.policy.max_wait_ms / 1e3

    def _num_here(self, session: Session) -> int:
        proposal = self._buffer.peek(session.session_id)
        return len(proposal.token_ids) if proposal is not None else 0

    # Telling the drafts.

    def _announce(self, session: Session, num_tokens: int) -> None:
        session.is_announced = self._streams.is_connected(session.router)
        if session.is_announced:
            opened = OpenSession(
                session.session_id,
                tuple(session.token_ids[:num_tokens]),
                session.num_prompt_tokens,
                session.sampling,
                session.max_depth,
            )
            self._outgoing[session.router].opens.append(opened)

    def _commit(self, session: Session, length_before: int) -> None:
        added = tuple(session.token_ids[length_before:])
        self._buffer.advance(session.session_id, length_before + len(added), added[-1])
        if not session.is_announced:
            self._announce(session, length_before)
        if not session.is_announced:
            return
        now = self._clock()
        depth = session.wanted_depth
        commit = Commit(session.session_id, length_before, added, depth, int(now * 1e9))
        self._outgoing[session.router].commits.append(commit)
        session.committed_at, session.is_due = now, depth > 0

    def _note_losses(self) -> None:
        lost = {i for i in self._streams.take_lost() if i in self._sessions}
        departed = set(self._streams.take_departed())
        for router in departed:
            self._patience.forget(router)  # it may never come back; if it does, with a new draft
        for session in self._sessions.values():
            if session.session_id in lost or session.router in departed:
                session.is_announced = session.is_due = False


def _cut(proposal: Proposal, depth: int, keeps_distributions: bool) -> Proposal:
    q = proposal.distributions if keeps_distributions else None
    token_ids = proposal.token_ids[:depth]
    return replace(proposal, token_ids=token_ids, distributions=q and q.prefix(depth))


def _count_positions(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for position in range(depth):
        counts[position] += 1
