"""The draft's one thread: takes news of sessions, answers commits with proposals."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specray.draft.directory import Address, Directory
from specray.draft.inbox import Arrival, Delivery, Departure, Inbox
from specray.draft.proposer import Proposer
from specray.draft.replies import Replies
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession


@dataclass(slots=True)
class EngineStats:
    """Counts since the start."""

    num_open_sessions: int = 0
    num_proposals: int = 0
    num_proposed: int = 0  # tokens
    num_rejected: int = 0  # sessions the proposer could not hold, or that missed a commit
    num_evicted: int = 0
    busy_s: float = 0.0


class DraftEngine:
    """Runs a proposer for the sessions of many routers.

    Each turn: all that has arrived is applied, then every session whose last commit wants tokens
    gets a proposal, in one batch or in as many as the proposer makes of them; then one session is
    opened, or, when none waits, the proposer does a little of its other work, so that prefills
    hold up no turn for long. Commits to a session that waits to be opened wait with it. Opening
    alone is not answered: the target's next token comes from its own prefill.
    """

    def __init__(self, proposer: Proposer, inbox: Inbox) -> None:
        self.stats = EngineStats()
        self._proposer = proposer
        self._inbox = inbox
        self._directory = Directory()
        self._replies = Replies()
        self._opening: dict[int, OpenSession] = {}  # waiting, oldest first
        self._early_commits: dict[int, list[Commit]] = {}  # of sessions in `_opening`
        self._arrived_ns: dict[int, int] = {}  # of the last commit
        self._wanting: dict[int, None] = {}  # sessions to be answered, in order of commit
        self._has_work = False  # whether the proposer may have more to do between turns

    def run(self) -> None:
        """Turns until the inbox is closed."""
        while True:
            is_idle = not (self._opening or self._wanting or self._has_work)
            deliveries = self._inbox.take(is_waiting=is_idle)
            if deliveries is None:
                return
            started_s = time.monotonic()
            self._turn(deliveries)
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
        else:
            self._has_work = self._proposer.work()
        self.stats.num_open_sessions = len(self._directory)

    def _apply(self, arrival: Arrival) -> None:
        router, frame = arrival.router, arrival.frame
        for session in frame.opens:
            self._enqueue_open(Address(router, session.session_id), session)
        for commit in frame.commits:
            self._commit(Address(router, commit.session_id), commit, arrival.arrived_ns)
        for router_session_id in frame.closes:
            self._close(Address(router, router_session_id))

    def _enqueue_open(self, address: Address, session: OpenSession) -> None:
        self._close(address)
        session_id = self._directory.add(address)
        self._opening[session_id] = replace(session, session_id=session_id)
        self._early_commits[session_id] = []

    def _commit(self, address: Address, commit: Commit, arrived_ns: int) -> None:
        session_id = self._directory.find(address)
        if session_id is None:
            self._replies.add_lost(address)
            return
        self._arrived_ns[session_id] = arrived_ns
        commit = replace(commit, session_id=session_id)
        if session_id in self._opening:
            self._early_commits[session_id].append(commit)
        else:
            self._extend(commit)

    def _extend(self, commit: Commit) -> None:
        session_id = commit.session_id
        self._wanting.pop(session_id, None)
        try:
            self._proposer.commit(commit)
        except SessionRejectedError:
            self._reject(session_id)
            return
        if commit.depth > 0:
            self._wanting[session_id] = None

    def _close(self, address: Address) -> None:
        self._replies.forgive(address)
        session_id = self._directory.find(address)
        if session_id is not None:
            self._forget(session_id)
            self._proposer.close(session_id)

    def _depart(self, departure: Departure) -> None:
        router = departure.router
        sessions = [self._directory.address(i) for i in self._directory.of_router(router)]
        for address in sessions:
            self._close(address)
        if not departure.is_connected:
            self._replies.forget(router)
            return
        for address in {*sessions, *(Address(router, i) for i in departure.lost)}:
            self._replies.add_lost(address)

    def _open_next(self) -> None:
        session_id = next(iter(self._opening))
        session, commits = self._opening.pop(session_id), self._early_commits.pop(session_id)
        try:
            self._proposer.open(session)
        except SessionRejectedError:
            self._reject(session_id)
            commits = []
        for commit in commits:
            if self._directory.is_held(session_id):
                self._extend(commit)
        self._collect_evicted()

    def _answer(self) -> None:
        wanting, self._wanting = self._wanting, {}
        self.stats.num_proposals += len(wanting)
        while wanting:
            answered = self._propose(list(wanting))
            self._replies.send()  # at once: the others' answers may take longer
            left = {session_id: None for session_id in wanting if session_id not in answered}
            wanting = left if len(left) < len(wanting) else {}
        self._collect_evicted()

    def _propose(self, session_ids: Sequence[int]) -> set[int]:
        """Asks once; returns who was answered."""
        answered = set()
        for proposal in self._proposer.propose(session_ids):
            session_id = proposal.session_id
            if session_id not in self._arrived_ns:
                continue  # a custom proposer speaks of a session that is closed, or never was
            answered.add(session_id)
            draft_time_us = (time.monotonic_ns() - self._arrived_ns[session_id]) // 1000
            self._replies.add_proposal(self._directory.address(session_id), proposal, draft_time_us)
            self.stats.num_proposed += len(proposal.token_ids)
        return answered

    def _collect_evicted(self) -> None:
        for session_id in self._proposer.take_evicted():
            self.stats.num_evicted += 1
            self._replies.add_lost(self._forget(session_id))

    def _reject(self, session_id: int) -> None:
        self.stats.num_rejected += 1
        self._replies.add_lost(self._forget(session_id))

    def _forget(self, session_id: int) -> Address:
        self._opening.pop(session_id, None)
        self._early_commits.pop(session_id, None)
        self._arrived_ns.pop(session_id, None)
        self._wanting.pop(session_id, None)
        return self._directory.remove(session_id)
