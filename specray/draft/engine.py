"""The draft's one thread: takes news of sessions, answers commits with proposals."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from specray.control.batch_cost import BatchCost
from specray.draft.directory import Address, Directory
from specray.draft.fair_queue import FairQueue
from specray.draft.inbox import Arrival, Delivery, Departure, Inbox
from specray.draft.proposer import DraftsAhead, Proposer, TellsWork
from specray.draft.replies import Replies
from specray.errors import SessionRejectedError
from specray.observability.journal import Journal
from specray.types import Commit, OpenSession, Proposal
from specray.wire.timeline import OFF, Timeline

_PRESSED_TURNS = 4  # then prefills and the like get their turn all the same
_EQUAL: Mapping[str, float] = MappingProxyType({})


class _Opening(NamedTuple):
    """A session that waits to be opened."""

    session: OpenSession
    commits: list[Commit]  # to it, that wait with it


class _Latest(NamedTuple):
    """A session's latest commit."""

    length: int  # of the session, by now
    arrived_ns: int


@dataclass(slots=True)
class EngineStats:
    """Counts since the start."""

    num_open_sessions: int = 0
    num_proposals: int = 0  # sent in answer to commits
    num_proposed: int = 0  # tokens
    num_rejected: int = 0  # sessions the proposer could not hold, or that missed a commit
    num_evicted: int = 0
    busy_s: float = 0.0
    num_ahead: int = 0  # proposals for outcomes that were not yet known
    ahead_s: float = 0.0  # of `busy_s`, without which nobody would have waited longer
    queued_s: float = 0.0  # from commits' arrival to the beginning of their answers, summed
    answer_fixed_s: float = 0.0  # of a batch of answers, whatever its size
    answer_each_s: float = 0.0  # and for each of them


class DraftEngine:
    """Runs a proposer for the sessions of many routers.

    Each turn: all that has arrived is applied, then every session whose last commit wants tokens
    gets a proposal, in one batch or in as many as the proposer makes of them; where several tenants
    want some, only as many as fit a batch that is cheap to divide, in fair order. Then one session
    is opened, or, when none waits, the proposer does a little of its other work, so that prefills
    hold up no turn for long. Commits to a session that waits to be opened wait with it. Opening
    alone is not answered: the target's next token comes from its own prefill.
    """

    def __init__(
        self,
        proposer: Proposer,
        inbox: Inbox,
        journal: Journal,
        timeline: Timeline = OFF,
        weights: Mapping[str, float] = _EQUAL,
        cost: BatchCost | None = None,
    ) -> None:
        """Takes its collaborators.

        Args:
            proposer: what drafts.
            inbox: what routers send.
            journal: what is written down about requests.
            timeline: what is written down about turns.
            weights: the tenants'; 1 for those that are not named.
            cost: what is known of the proposer's batches.
        """
        self.stats = EngineStats()
        self.turn_began_s: float | None = None  # None between turns
        self._journal = journal
        self._timeline = timeline
        self._proposer = proposer
        self._inbox = inbox
        self._directory = Directory()
        self._replies = Replies()
        self._opening: dict[int, _Opening] = {}
        self._to_open = FairQueue(weights)  # those in `_opening`
        self._tenants: dict[int, str] = {}
        self._cost = cost or BatchCost()  # of answers
        self._latest: dict[int, _Latest] = {}  # commits
        self._wanting = FairQueue(weights)  # sessions to be answered
        self._num_pressed = 0  # turns in a row that left answers owing
        self._has_work = False  # whether the proposer may have more to do between turns

    def run(self) -> None:
        """Turns until the inbox is closed."""
        while True:
            is_idle = not (self._opening or self._wanting or self._has_work)
            deliveries = self._inbox.take(is_waiting=is_idle)
            if deliveries is None:
                return
            self.turn_began_s = started_s = time.monotonic()
            self._turn(deliveries)
            self.turn_began_s = None
            self.stats.busy_s += time.monotonic() - started_s

    def _turn(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if isinstance(delivery, Departure):
                self._depart(delivery)
            else:
                self._apply(delivery)
        self._answer()
        self._replies.send()
        if self._opening:
            self._open_next()
            self._replies.send()
            self._has_work = True  # its prefill may go on
        elif not self._wanting or self._num_pressed >= _PRESSED_TURNS:
            self._work()
        else:
            self._num_pressed += 1
        self.stats.num_open_sessions = len(self._directory)

    def _work(self) -> None:
        """Does a little of what can wait."""
        started_s = time.monotonic()
        self._num_pressed = 0
        self._has_work = self._proposer.work()
        if self._timeline.is_on:
            self._write_work(started_s)
        self._take_ahead()
        self._collect_evicted()
        self._replies.send()
        self.stats.ahead_s += time.monotonic() - started_s

    def _apply(self, arrival: Arrival) -> None:
        router, frame = arrival.router, arrival.frame
        for session in frame.opens:
            self._enqueue_open(Address(router, session.session_id), session)
        if frame.commits and self._timeline.is_on:
            self._write_commits(arrival)
        for commit in frame.commits:
            self._commit(Address(router, commit.session_id), commit, arrival.arrived_ns)
        for router_session_id in frame.closes:
            self._close(Address(router, router_session_id), "closed")

    def _enqueue_open(self, address: Address, session: OpenSession) -> None:
        self._close(address, "reopened")
        session_id = self._directory.add(address)
        self._journal.begin(session_id, session.request_id, session.traceparent)
        self._opening[session_id] = _Opening(replace(session, session_id=session_id), [])
        self._tenants[session_id] = session.tenant
        self._to_open.put(session_id, session.tenant, len(session.token_ids))

    def _commit(self, address: Address, commit: Commit, arrived_ns: int) -> None:
        session_id = self._directory.find(address)
        if session_id is None:
            self._replies.add_lost(address)
            return
        length = commit.position + len(commit.token_ids)
        self._latest[session_id] = _Latest(length, arrived_ns)
        commit = replace(commit, session_id=session_id)
        if (opening := self._opening.get(session_id)) is not None:
            opening.commits.append(commit)
        else:
            self._extend(commit)

    def _extend(self, commit: Commit) -> None:
        session_id = commit.session_id
        try:
            self._proposer.commit(commit)
        except SessionRejectedError as error:
            self._reject(session_id, error)
        self._collect_evicted()  # its room may have been another's
        if not self._directory.is_held(session_id):
            return
        if commit.depth > 0:
            self._wanting.put(session_id, self._tenants[session_id], commit.depth)
        else:
            self._wanting.discard(session_id)

    def _close(self, address: Address, outcome: str) -> None:
        self._replies.forgive(address)
        session_id = self._directory.find(address)
        if session_id is not None:
            self._forget(session_id, outcome)
            self._proposer.close(session_id)

    def _depart(self, departure: Departure) -> None:
        router = departure.router
        sessions = [self._directory.address(i) for i in self._directory.of_router(router)]
        for address in sessions:
            self._close(address, "router departed")
        if not departure.is_connected:
            self._replies.forget(router)
            return
        for address in {*sessions, *(Address(router, i) for i in departure.lost)}:
            self._replies.add_lost(address)

    def _open_next(self) -> None:
        (session_id,) = self._to_open.take(1)
        session, commits = self._opening.pop(session_id)
        started_s = time.monotonic()
        try:
            self._proposer.open(session)
        except SessionRejectedError as error:
            self._reject(session_id, error)
            commits = []
        self._timeline.span("open", started_s, session=session_id, request=session.request_id)
        for commit in commits:
            if self._directory.is_held(session_id):
                self._extend(commit)
        self._collect_evicted()

    def _answer(self) -> None:
        is_shared = self._wanting.num_tenants > 1
        most = self._cost.divisible_size if is_shared else len(self._wanting)
        wanting = dict.fromkeys(self._wanting.take(most))
        started_s = time.monotonic()
        commits = {session_id: self._latest[session_id] for session_id in wanting}
        answers: set[int] = set()  # sessions whose answer had not been sent ahead
        while wanting:
            answered = self._propose(list(wanting), answers)
            self._replies.send()  # at once: the others' answers may take longer
            self._collect_evicted()
            left = {i: None for i in wanting if i not in answered and self._directory.is_held(i)}
            wanting = left if len(left) < len(wanting) else {}
        # A custom proposer may speak of others, too.
        if asked := answers & commits.keys():
            self._note_batch([commits[i].arrived_ns / 1e9 for i in asked], started_s)

    def _note_batch(self, arrived: Sequence[float], started_s: float) -> None:
        """Learns from a batch of answers whose commits came at these times."""
        self._cost.observe(len(arrived), time.monotonic() - started_s)
        stats = self.stats
        stats.queued_s += sum(max(0.0, started_s - at) for at in arrived)
        stats.answer_fixed_s, stats.answer_each_s = self._cost.fixed_s, self._cost.per_item_s

    def _propose(self, session_ids: Sequence[int], answers: set[int]) -> set[int]:
        """Asks once.

        Args:
            session_ids: whom for.
            answers: to which those are added who got a proposal for where they are, and not only
                for outcomes to come: these may follow an answer that was sent ahead.

        Returns:
            Who got anything, and needs to be asked for no more.
        """
        answered = set()
        started_s = time.monotonic()
        for proposal in self._proposer.propose(session_ids):
            session_id = proposal.session_id
            latest = self._latest.get(session_id)
            if latest is None:
                continue  # a custom proposer speaks of a session that is closed, or never was
            answered.add(session_id)
            if proposal.position == latest.length:
                if session_id not in answers:
                    answers.add(session_id)
                    self.stats.num_proposals += 1
                self._add_answer(proposal, latest.arrived_ns)
            else:
                self._add_ahead(proposal)
        if answered:
            self._timeline.span("answer", started_s, sessions=sorted(answered))
        return answered

    def _take_ahead(self) -> None:
        """Takes what was drafted for outcomes to come."""
        if not isinstance(self._proposer, DraftsAhead):
            return
        for proposal in self._proposer.take_ahead():
            if proposal.session_id in self._latest:
                self._add_ahead(proposal)

    def _add_answer(self, proposal: Proposal, commit_arrived_ns: int) -> None:
        session_id, num_tokens = proposal.session_id, len(proposal.token_ids)
        # 0 would say that it was drafted ahead.
        draft_time_us = max(1, (time.monotonic_ns() - commit_arrived_ns) // 1000)
        self._replies.add_proposal(self._directory.address(session_id), proposal, draft_time_us)
        self.stats.num_proposed += num_tokens
        self._journal.add(session_id, proposals=1, proposed_tokens=num_tokens)

    def _add_ahead(self, proposal: Proposal) -> None:
        session_id = proposal.session_id
        self._replies.add_proposal(self._directory.address(session_id), proposal, draft_time_us=0)
        self._timeline.mark("outcome sent", session=session_id, at=proposal.position)
        self.stats.num_ahead += bool(proposal.token_ids)

    def _collect_evicted(self) -> None:
        for session_id in self._proposer.take_evicted():
            if not self._directory.is_held(session_id):
                continue  # rejected or closed meanwhile
            self.stats.num_evicted += 1
            self._replies.add_lost(self._forget(session_id, "evicted"))

    def _reject(self, session_id: int, reason: SessionRejectedError) -> None:
        self.stats.num_rejected += 1
        self._replies.add_lost(self._forget(session_id, f"rejected: {reason}"))

    def _forget(self, session_id: int, outcome: str) -> Address:
        self._journal.end(session_id, outcome)
        self._opening.pop(session_id, None)
        self._latest.pop(session_id, None)
        self._tenants.pop(session_id, None)
        self._to_open.discard(session_id)
        self._wanting.discard(session_id)
        return self._directory.remove(session_id)

    def _write_work(self, started_s: float) -> None:
        """What the proposer has just done between answers, and for whom as far as it says."""
        proposer = self._proposer
        sessions = sorted({*proposer.worked_for()}) if isinstance(proposer, TellsWork) else []
        if sessions or self._has_work:
            self._timeline.span("draft ahead", started_s, sessions=sessions)

    def _write_commits(self, arrival: Arrival) -> None:
        router, commits = arrival.router, arrival.frame.commits
        self._timeline.span(
            "commit arrived",
            arrival.arrived_ns / 1e9,
            sessions=[self._directory.find(Address(router, c.session_id)) for c in commits],
            at=[commit.position for commit in commits],
            added=[len(commit.token_ids) for commit in commits],
            sent_ns=[commit.sent_at_ns for commit in commits],
        )
