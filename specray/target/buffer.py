"""Proposals that have arrived and wait for a step, keyed by what they extend."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from specray.config import MAX_FAN_OUT
from specray.target.soundness import are_drawn
from specray.types import Proposal, TruncatedDistributions

_LOOKED_UP_PER_TOKEN = 5  # continuations held for each number of accepted tokens, beside a model's


class Verdict(Enum):
    """What became of a proposal on arrival."""

    KEPT = "kept"
    LATE = "late"  # extends a length that the request has already passed; its rest may be kept
    STALE = "stale"  # extends something the request is not, or nothing known
    INVALID = "invalid"  # can't have come from a working draft


class Arrival(NamedTuple):
    """A proposal, and when it came on the buffer's clock."""

    proposal: Proposal
    at: float


@dataclass(slots=True)
class _Session:
    router: str
    position: int
    last_token_id: int
    recent: tuple[int, ...]  # the request's latest tokens, as far as a proposal may overlap them
    previous_position: int = -1
    answered_position: int = -1  # tokens were proposed there, in time or late
    covered_position: int = -2  # the outcomes of a verification there have arrived
    is_lost: bool = False  # its draft has let go of it; nothing more will come at this length
    is_alive: bool = False
    arrivals: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    taken: Arrival | None = None  # what the running step verifies, or a part of

    def note_coverage(self, position: int) -> None:
        """Heed only what is said about the step that runs, or the one that has just ended."""
        if position in (self.position, self.previous_position):
            self.covered_position = max(self.covered_position, position)

    def rest_of(self, proposal: Proposal) -> Proposal | None:
        """What a proposal says beyond the tokens that have been added since, if it agrees."""
        num_added = self.position - proposal.position
        if not 0 < num_added < len(proposal.token_ids) or not self.was_at(proposal):
            return None
        if self.recent[-num_added:] != proposal.token_ids[:num_added]:
            return None
        return replace(proposal.rest(num_added), covers_outcomes=False)

    def was_at(self, proposal: Proposal) -> bool:
        """Whether the proposal extends what the request is, or was a few tokens ago."""
        start = len(self.recent) - 1 - (self.position - proposal.position)
        return 0 <= start < len(self.recent) and self.recent[start] == proposal.last_token_id


class ProposalBuffer:
    """Thread-safe: streams offer, the scheduler takes and may wait.

    A proposal is looked up by session, length and last token, so whatever is late or meant for
    another outcome of the same step is never found, a newer one takes the place of an older, and
    only the router that a session came through may propose for it. One for a longer request stays
    until that is outgrown; if other tokens than it assumed lead to its length and last token it is
    found, which costs speed at most: it ships what it was drawn from. Memory is bounded by the open
    sessions, the depth and the routers.

    A proposal that was overtaken by tokens which it proposed itself is kept for its rest. That is
    exact: given the tokens before it, the rest was drawn from what it ships, and no verification
    has seen it. So is one of which a step verified only a beginning, where the target's own token
    behind that is the one proposed.
    """

    def __init__(
        self, vocab_size: int, max_depth: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.vocab_size = vocab_size
        self.max_depth = max_depth  # tokens of a proposal that the engine has room for
        self._max_per_session = MAX_FAN_OUT + _LOOKED_UP_PER_TOKEN * (max_depth + 1)
        self._clock = clock
        self._sessions: dict[int, _Session] = {}
        self._heard: set[str] = set()  # routers that proposed for sessions that are not open
        # Each request of a step enters it several times; a condition's own `with` takes twice as
        # long, as Python runs it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def open(self, session_id: int, router: str, position: int, last_token_id: int) -> None:
        """Begin to accept a router's proposals for a session."""
        with self._lock:
            self._sessions[session_id] = _Session(router, position, last_token_id, (last_token_id,))

    def advance(self, session_id: int, added: Sequence[int]) -> None:
        """Follow a session that has grown by some tokens; unknown ones are ignored."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return
            session.is_lost = False
            session.previous_position = session.position
            session.position += len(added)
            session.last_token_id = added[-1]
            session.recent = (*session.recent, *added)[-self.max_depth - 2 :]
            arrivals, session.arrivals = session.arrivals, {}
            taken, session.taken = session.taken, None
            for key, arrival in arrivals.items():
                if key[0] >= session.position:
                    session.arrivals[key] = arrival
            for arrival in (*arrivals.values(), *([taken] if taken else ())):
                self._keep_rest(session, arrival.proposal, arrival.at)

    def move(self, session_id: int, router: str) -> None:
        """From now on accept another router's proposals for an open session, and only these.

        What has come from the one before would be judged by the trust in this one.
        """
        with self._lock:
            before = self._sessions[session_id]
            self._sessions[session_id] = _Session(
                router, before.position, before.last_token_id, before.recent
            )

    def close(self, session_id: int) -> None:
        """Forget a session; unknown ones are ignored."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def lose(self, router: str, session_ids: Collection[int] | None = None) -> list[int]:
        """Expect nothing for these of a router's sessions, or for all: their draft is gone.

        Whoever waits for them goes on waiting until `wake`.

        Returns:
            Those that are open, and the router's.
        """
        with self._lock:
            if session_ids is None:
                self._heard.discard(router)
            ids = self._sessions.keys() if session_ids is None else session_ids
            lost = [i for i in ids if i in self._sessions and self._sessions[i].router == router]
            for session_id in lost:
                self._sessions[session_id].is_lost = True
            return lost

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._lock:
            self._changed.notify_all()

    def offer(self, proposal: Proposal, router: str) -> Verdict:
        """Keep a router's proposal if it may still be of use; one beyond the depth is invalid."""
        (verdict,) = self.offer_all((proposal,), router)
        return verdict

    def offer_all(self, proposals: Sequence[Proposal], router: str) -> list[Verdict]:
        """`offer` for each of a frame, judged together: drafts send several for each session."""
        are_valid = self._are_valid(proposals)  # outside the lock: the engine's thread waits for it
        with self._lock:
            return [
                self._offer(proposal, router, is_valid=is_valid)
                for proposal, is_valid in zip(proposals, are_valid, strict=True)
            ]

    def _offer(self, proposal: Proposal, router: str, *, is_valid: bool) -> Verdict:
        session = self._sessions.get(proposal.session_id)
        if session is None and is_valid:
            self._heard.add(router)
        if session is None or session.router != router:
            return Verdict.STALE
        verdict = self._judge(session, proposal) if is_valid else Verdict.INVALID
        session.is_alive |= is_valid
        if is_valid and proposal.token_ids and session.was_at(proposal):
            session.answered_position = max(session.answered_position, proposal.position)
        if is_valid and proposal.covers_outcomes:
            session.note_coverage(proposal.position)
        if verdict is Verdict.KEPT:
            self._keep(session, proposal)
            self._changed.notify_all()
        elif verdict is Verdict.LATE and self._keep_rest(session, proposal, self._clock()):
            self._changed.notify_all()
        return verdict

    def take(self, session_id: int) -> Arrival | None:
        """Remove and return the proposal that extends the session as it is now."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return None
            arrival = session.arrivals.pop((session.position, session.last_token_id), None)
            if arrival is not None:
                session.is_alive, session.taken = False, arrival
            return arrival

    def peek(self, session_id: int) -> Proposal | None:
        """The proposal that `take` would return."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return None
            arrival = session.arrivals.get((session.position, session.last_token_id))
            return arrival.proposal if arrival is not None else None

    def is_settled(self, session_id: int) -> bool:
        """Whether waiting would bring nothing: its proposal is here, or none will come."""
        with self._lock:
            session = self._sessions.get(session_id)
            return session is None or self._is_ready(session_id)

    def is_lost(self, session_id: int) -> bool:
        """Whether nothing will come, as the session's draft is gone."""
        with self._lock:
            session = self._sessions.get(session_id)
            return session is not None and session.is_lost

    def is_covered(self, session_id: int) -> bool:
        """Whether the draft had drafted ahead for whatever the latest commit might be.

        Then a proposal that is not here would not come either.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            return session is None or session.covered_position == session.previous_position

    def was_answered(self, session_id: int, position: int) -> bool:
        """Whether tokens came, however late, to extend the session as it was at a length."""
        with self._lock:
            session = self._sessions.get(session_id)
            return session is not None and session.answered_position >= position

    def take_sign_of_life(self, session_id: int) -> bool:
        """Whether any sound proposal, late or not, came for the session since the last call."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return False
            was_alive, session.is_alive = session.is_alive, False
            return was_alive

    def take_heard(self) -> set[str]:
        """Routers of sound proposals for sessions that are not open, since the last call."""
        with self._lock:
            heard, self._heard = self._heard, set()
            return heard

    def wait_for(self, session_ids: Collection[int], deadline: float) -> None:
        """Block until every session is settled, or the deadline on the clock passes."""
        with self._lock:
            while not all(self._is_ready(session_id) for session_id in session_ids):
                left_s = deadline - self._clock()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return

    def _is_ready(self, session_id: int) -> bool:
        session = self._sessions.get(session_id)
        if session is None or session.is_lost:
            return True  # nothing to wait for
        is_here = (session.position, session.last_token_id) in session.arrivals
        return is_here or session.covered_position == session.previous_position

    def _judge(self, session: _Session, proposal: Proposal) -> Verdict:
        if proposal.position < session.position:
            return Verdict.LATE
        if proposal.position > session.position + self.max_depth + 1:
            return Verdict.STALE  # beyond every outcome of the step that may be running
        is_current = proposal.position == session.position
        if is_current and proposal.last_token_id != session.last_token_id:
            return Verdict.STALE
        return Verdict.KEPT

    def _keep(self, session: _Session, proposal: Proposal) -> None:
        key = (proposal.position, proposal.last_token_id)
        if not proposal.token_ids and key in session.arrivals:
            return  # nothing takes nobody's place
        there = session.arrivals.pop(key, None)  # a newer one is not the oldest
        at = self._clock()
        if there is not None and _goes_on(there.proposal, proposal):
            at = there.at  # there was something to verify since then
        session.arrivals[key] = Arrival(proposal, at)
        if len(session.arrivals) > self._max_per_session:
            current = (session.position, session.last_token_id)
            del session.arrivals[next(k for k in session.arrivals if k != current)]

    def _keep_rest(self, session: _Session, proposal: Proposal, at: float) -> bool:
        """Keeps the rest of an overtaken proposal, unless another is there than its beginning."""
        rest = session.rest_of(proposal)
        if rest is None:
            return False
        key = (rest.position, rest.last_token_id)
        there = session.arrivals.get(key)
        if there is not None and there.proposal.token_ids:
            if not _goes_on(there.proposal, rest):
                return False
            at = there.at
        session.arrivals[key] = Arrival(rest, at)
        return True

    def is_valid(self, proposal: Proposal) -> bool:
        """Whether the engine can verify it, wherever it comes from."""
        return self._are_valid((proposal,))[0]

    def _are_valid(self, proposals: Sequence[Proposal]) -> list[bool]:
        are_valid = [self._has_valid_tokens(proposal) for proposal in proposals]
        shipping = [
            i
            for i, proposal in enumerate(proposals)
            if are_valid[i] and proposal.distributions is not None
        ]
        for i, is_sound in zip(
            shipping, are_drawn([proposals[i] for i in shipping], self.vocab_size), strict=True
        ):
            are_valid[i] = is_sound
        return are_valid

    def _has_valid_tokens(self, proposal: Proposal) -> bool:
        if len(proposal.token_ids) > self.max_depth:
            return False  # nobody asks for so many; vLLM's buffers have no room for them
        if any(not 0 <= token < self.vocab_size for token in proposal.token_ids):
            return False
        # Nor is not-a-number within.
        return all(0 <= confidence <= 1 for confidence in proposal.confidences)


def _goes_on(before: Proposal, proposal: Proposal) -> bool:
    """Whether a proposal begins with all that one before it says, and says more.

    The same tokens from other distributions are not: to prefer it then, for its tokens, would bias
    sampled output.
    """
    num_before = len(before.token_ids)
    if not 0 < num_before < len(proposal.token_ids):
        return False
    if proposal.token_ids[:num_before] != before.token_ids:
        return False
    q = proposal.distributions
    return _are_equal(q.prefix(num_before) if q is not None else None, before.distributions)


def _are_equal(q: TruncatedDistributions | None, other: TruncatedDistributions | None) -> bool:
    if q is None or other is None:
        return q is other
    return np.array_equal(q.token_ids, other.token_ids) and np.array_equal(
        q.probabilities, other.probabilities
    )
