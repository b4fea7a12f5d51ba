"""A draft that is a table: what the target usually says behind its last few tokens.

While what it has proposed is verified it drafts for the likely outcomes, as a model does
(`specray.draft.ahead`); that takes it microseconds, and saves the way there and back.

Exactness. Continuations are drawn with randomness of their own, and which outcomes
they are for depends on what is being verified and on earlier commits.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import eq
from typing import NamedTuple

import numpy as np

from specray.draft.ngram_drawing import NgramDrawing
from specray.draft.outcomes import InFlight, Outcome, OutcomeModel
from specray.draft.pace import Rhythm, Rhythms
from specray.draft.session import Session, unknown_session
from specray.models.ngrams import NgramModel
from specray.types import Commit, OpenSession, Proposal

_LEAST_PROBABILITY = 0.003  # of an outcome that is worth its bytes


class _Choice(NamedTuple):
    probability: float
    num_accepted: int
    added: int


@dataclass(slots=True, eq=False)
class _State:
    """A session, and what is in flight for it."""

    session: Session
    rhythm: Rhythm  # of the session's target
    flight: InFlight | None = None  # what the target has to verify
    is_answered: bool = False  # it was sent ahead
    ahead: dict[Outcome, Proposal] = field(default_factory=dict)
    left_out: Collection[Outcome] = ()

    def settle(self, commit: Commit, outcomes: OutcomeModel) -> Proposal | None:
        """Learns from a commit, which the session has; returns what was sent ahead for it."""
        flight, ahead, self.ahead = self.flight, self.ahead, {}
        # A target may guess behind all that it was sent.
        if flight and all(map(eq, commit.token_ids[:-1], flight.token_ids)):
            outcomes.observe(flight, commit.token_ids, self.session.sampling)
            self.rhythm.observe_verification(
                flight.token_ids, commit.token_ids, was_ahead=flight.was_ahead
            )
        sent = ahead.get((len(self.session), commit.token_ids[-1])) if commit.depth else None
        self.flight, self.is_answered, self.left_out = None, sent is not None, ()
        return sent


class NgramProposer:
    """Proposes from an n-gram model, in microseconds a token."""

    def __init__(self, ngrams: NgramModel, rng: np.random.Generator, fan_out: int = 0) -> None:
        """Takes the table, randomness, and for how many outcomes to draft ahead for each session.

        None at 0: then it answers commits only.
        """
        self.outcomes = OutcomeModel()
        self._rhythms = Rhythms()
        self._ngrams = ngrams
        self._drawing = NgramDrawing(ngrams, rng)
        self._fan_out = fan_out
        self._states: dict[int, _State] = {}
        self._waiting: dict[int, None] = {}  # sessions whose outcomes are to be drafted for
        self._drafted: list[Proposal] = []
        self._worked_for: Collection[int] = ()

    def open(self, session: OpenSession) -> None:
        """Follows the session; raises SessionRejectedError when it has no tokens."""
        rhythm = self._rhythms.of(session.target)
        self._states[session.session_id] = _State(Session(session), rhythm)

    def commit(self, commit: Commit) -> None:
        """Extends a session; raises SessionRejectedError after a missed commit."""
        state = self._states.pop(commit.session_id, None)
        self._waiting.pop(commit.session_id, None)
        if state is None:
            raise unknown_session(commit.session_id)
        state.session.extend(commit)
        self._states[commit.session_id] = state
        if (sent := state.settle(commit, self.outcomes)) is not None:
            self._follow(state, sent, was_ahead=True)

    def close(self, session_id: int) -> None:
        """Forgets the session."""
        self._states.pop(session_id, None)
        self._waiting.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """What usually follows; drawn, for sampled requests, from the shares that are shipped.

        Nothing for sessions whose answer was sent ahead.
        """
        states = [self._states[session_id] for session_id in session_ids]
        return [self._answer(state) for state in states if not state.is_answered]

    def work(self) -> bool:
        """Drafts ahead for one session; whether others wait for it."""
        session_id = next(iter(self._waiting), None)
        if session_id is None:
            self._worked_for = ()
            return False
        self._worked_for = (session_id,)
        del self._waiting[session_id]
        state = self._states[session_id]
        drafted = list(self._ahead(state))
        if state.is_answered and not drafted:  # silence would look like a stall
            drafted = [state.session.proposal((), "ngram")]
        self._drafted += drafted
        return bool(self._waiting)

    def worked_for(self) -> Collection[int]:
        """See `TellsWork`."""
        return self._worked_for

    def take_evicted(self) -> list[int]:
        """Nothing: a session is its tokens."""
        return []

    def take_ahead(self) -> list[Proposal]:
        """See `DraftsAhead`."""
        drafted, self._drafted = self._drafted, []
        return [proposal for proposal in drafted if proposal.session_id in self._states]

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """See `DraftsAhead`."""
        self._states[session_id].left_out = outcomes

    def _answer(self, state: _State) -> Proposal:
        proposal = self._propose(state.session)
        if self._fan_out and state.session.depth:
            self._follow(state, proposal, was_ahead=False)
        return proposal

    def _follow(self, state: _State, proposal: Proposal, *, was_ahead: bool) -> None:
        """Drafts for a proposal's outcomes, when it is its turn."""
        session = state.session
        candidates = self._drawing.candidates(
            session.token_ids, proposal.token_ids, session.sampling
        )
        state.flight = InFlight(proposal.token_ids, candidates, was_ahead)
        self._waiting.pop(session.session_id, None)
        self._waiting[session.session_id] = None

    def _ahead(self, state: _State) -> Iterator[Proposal]:
        session, flight = state.session, state.flight
        if flight is None:
            return
        end = session.token_ids[-self._ngrams.context_size :]
        for _, num_accepted, added in nlargest(self._fan_out, self._choices(state, flight)):
            text = [*end, *flight.token_ids[:num_accepted], added]
            chain = self._drawing.draft(text, session.depth, session.sampling)
            if not chain.token_ids:
                continue
            after = session.ahead(
                len(session) + num_accepted + 1,
                added,
                chain.token_ids,
                "ngram",
                chain.distributions,
                tuple(chain.confidences),
            )
            state.ahead[after.position, added] = after
            yield after

    def _choices(self, state: _State, flight: InFlight) -> Iterator[_Choice]:
        rate = state.rhythm.verified_rate(was_ahead=flight.was_ahead)
        probabilities = self.outcomes.probabilities(flight, state.session.sampling, rate)
        rows, columns = np.nonzero(probabilities >= _LEAST_PROBABILITY)
        for num_accepted, column in zip(rows.tolist(), columns.tolist(), strict=True):
            added = int(flight.candidates.token_ids[num_accepted, column])
            if (len(state.session) + num_accepted + 1, added) not in state.left_out:
                yield _Choice(float(probabilities[num_accepted, column]), num_accepted, added)

    def _propose(self, session: Session) -> Proposal:
        chain = self._drawing.draft(session.token_ids, session.depth, session.sampling)
        return session.proposal(
            chain.token_ids, "ngram", chain.distributions, tuple(chain.confidences)
        )
