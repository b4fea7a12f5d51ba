"""Several sources in one draft: copies where the text repeats itself, a model for the rest.

Exactness. Which source answers, and where a proposal is cut, depends on what a session's tokens
make of the look-up, on what earlier commits have taught and on how far the model has got, never on
a token that was drawn for the proposal at hand. So every proposal's tokens come from the
distribution that is verified: a point mass at each looked-up token, or what the model or the
n-grams ship, and the output keeps the target's distribution.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from specray.control.acceptance import (
    INITIAL_RATE,
    AcceptanceRate,
    expected_length,
    request_acceptance,
    source_acceptance,
)
from specray.draft.outcomes import Outcome
from specray.draft.prompt_lookup import Lookup, PromptLookup
from specray.draft.proposer import DraftsAhead, FollowsOthers, LimitsFanOut, Proposer, TellsWork
from specray.draft.session import Session
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal, Source


class _Sent(NamedTuple):
    """What was proposed last in place of a look-up, until it is known what became of it."""

    position: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class _State:
    """What is known of a session beyond its tokens."""

    acceptance: AcceptanceRate = field(default_factory=request_acceptance)  # of what is `sent`
    sent: _Sent | None = None
    pushed: frozenset[Outcome] = frozenset()  # outcomes that a look-up has answered ahead
    ahead: dict[Outcome, Proposal] = field(default_factory=dict)  # and those of the model
    answered: Outcome | None = None  # the latest of these that came true


class HybridProposer:
    """Answers each session from the source that is expected to get further.

    Look-ups go out first and the sessions that are left to the model get their answer in the next
    call, so that nobody waits for a model who does not need it. Outcomes for which a look-up
    would be chosen are drafted ahead, whoever answers now; the model drafts ahead for others. They
    never cover all outcomes: where there is none, the model's answer follows.

    With a quick source, such as n-grams, no step waits for the model: the quick one answers what
    was not drafted ahead, and the model drafts for the outcomes of whatever was answered.
    """

    def __init__(
        self, lookup: PromptLookup, model: Proposer, quick: Proposer | None = None
    ) -> None:
        """Takes the sources.

        Args:
            lookup: copies.
            model: takes its time.
            quick: answers in its place; only a model that `FollowsOthers` is then heard at all.
        """
        self._lookup = lookup
        self._quick = quick
        self._follower = model if isinstance(model, FollowsOthers) else None
        # Those in use, which may be set from any thread; n-grams stand in the model's place.
        self.sources: frozenset[Source] = frozenset(("prompt_lookup", "ngram", "model"))
        self._model = model
        self._states: dict[int, _State] = {}
        # Of what is `sent`, apart for greedy and sampled requests.
        self._rates: dict[bool, AcceptanceRate] = defaultdict(source_acceptance)

    def open(self, session: OpenSession) -> None:
        """Opens the session with all; raises SessionRejectedError when one can't hold it."""
        self.close(session.session_id)
        self._lookup.open(session)
        self._states[session.session_id] = _State()
        try:
            if self._quick is not None:
                self._quick.open(session)
            self._model.open(session)
        except SessionRejectedError:
            self.close(session.session_id)
            raise

    def commit(self, commit: Commit) -> None:
        """Tells all, and learns how the model did; raises SessionRejectedError as they do."""
        try:
            self._model.commit(commit)
            self._lookup.commit(commit)
            if self._quick is not None:
                self._quick.commit(commit)
        except SessionRejectedError:
            self.close(commit.session_id)
            raise
        self._learn(commit)

    def close(self, session_id: int) -> None:
        """Forgets the session."""
        for source in filter(None, (self._lookup, self._model, self._quick)):
            source.close(session_id)
        self._states.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """Answers those sessions that a look-up serves, or, if there are none, all from the model.

        Behind each answer stand the look-ups for its outcomes.
        """
        proposals = [
            proposal
            for session_id in session_ids
            if (lookup := self._chosen(session_id)) is not None
            for proposal in self._with_outcomes(
                self._followed(self._lookup.proposal(session_id, lookup))
            )
        ]
        if proposals:
            return proposals
        answers = self._after_answers_ahead(session_ids)
        if self._is_quick:
            quick = (self._answer_quickly(session_id) for session_id in session_ids)
            return answers + list(chain.from_iterable(quick))
        return answers + self._ask_model(session_ids)

    def work(self) -> bool:
        """Lets the model catch up a little; whether there is more."""
        return self._model.work()

    def worked_for(self) -> Collection[int]:
        """See `TellsWork`."""
        return self._model.worked_for() if isinstance(self._model, TellsWork) else ()

    def take_ahead(self) -> list[Proposal]:
        """See `DraftsAhead`: what the model has drafted ahead."""
        if not isinstance(self._model, DraftsAhead):
            return []
        ahead = [p for p in self._model.take_ahead() if p.session_id in self._states]
        for proposal in filter(attrgetter("token_ids"), ahead):  # an empty one is no answer
            outcome = (proposal.position, proposal.last_token_id)
            self._states[proposal.session_id].ahead[outcome] = proposal
        return ahead

    def limit_fan_out(self, most: int) -> None:
        """See `LimitsFanOut`."""
        if isinstance(self._model, LimitsFanOut):
            self._model.limit_fan_out(most)

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """See `DraftsAhead`."""
        if isinstance(self._model, DraftsAhead):
            self._model.leave_out(session_id, outcomes)

    def take_evicted(self) -> list[int]:
        """Sessions that one of the sources has dropped since the last call."""
        sources = filter(None, (self._lookup, self._model, self._quick))
        evicted = list(chain.from_iterable(source.take_evicted() for source in sources))
        for session_id in evicted:
            self.close(session_id)
        return evicted

    def _ask_model(self, session_ids: Sequence[int]) -> list[Proposal]:
        answers = []
        for proposal in self._model.propose(session_ids):
            session_id = proposal.session_id
            self._states[session_id].sent = _Sent(proposal.position, proposal.token_ids)
            if not proposal.token_ids and "prompt_lookup" in self.sources:
                # No room for the model: a look-up is better than nothing.
                proposal = self._lookup.proposal(session_id, self._lookup.look_up(session_id))
            answers += self._with_outcomes(proposal)
        return answers

    @property
    def _uses_model(self) -> bool:
        """Whether there is anything but look-ups."""
        return bool(self.sources & {"model", "ngram"})

    @property
    def _is_quick(self) -> bool:
        """Whether a quick source answers where the model might."""
        return self._quick is not None and "ngram" in self.sources

    def _answer_quickly(self, session_id: int) -> list[Proposal]:
        """What the model has for the session already, else from the quick source."""
        if self._quick is None or (self._follower and self._follower.is_answered(session_id)):
            return []
        partial = self._follower and self._follower.take_partial(session_id)
        if partial:
            return self._with_outcomes(partial)
        (proposal,) = self._quick.propose([session_id])
        self._states[session_id].sent = _Sent(proposal.position, proposal.token_ids)
        return self._with_outcomes(self._followed(proposal))

    def _followed(self, proposal: Proposal) -> Proposal:
        """The same; the model begins to draft for its outcomes."""
        if self._follower is not None and "model" in self.sources:
            self._states[proposal.session_id].ahead.clear()
            self._follower.follow(proposal.session_id, proposal.token_ids)
        return proposal

    def _chosen(self, session_id: int) -> Lookup | None:
        """The look-up, if it is to answer; also where it has already done so ahead."""
        session = self._lookup.session(session_id)
        if session.depth and "prompt_lookup" not in self.sources:
            return None
        end = (len(session), session.token_ids[-1])
        state = self._states[session_id]
        if session.depth and (end in state.ahead or end == state.answered):
            return None  # the model has answered ahead
        lookup = self._lookup.look_up(session_id)
        if not session.depth or not self._uses_model or end in state.pushed:
            return lookup
        if lookup.token_ids and lookup.expected_length >= self._least_length(session):
            return lookup
        return None

    def _with_outcomes(self, proposal: Proposal) -> list[Proposal]:
        session_id = proposal.session_id
        session = self._lookup.session(session_id)
        if not session.depth or "prompt_lookup" not in self.sources:
            return [proposal]
        least_length = self._least_length(session) if self._uses_model else 0.0
        ahead = list(self._lookup.ahead(session_id, proposal.token_ids, least_length))
        outcomes = frozenset((after.position, after.last_token_id) for after in ahead)
        self._states[session_id].pushed = outcomes
        self.leave_out(session_id, outcomes)
        return [proposal, *ahead]

    def _after_answers_ahead(self, session_ids: Sequence[int]) -> list[Proposal]:
        """The look-ups for what may become of proposals that the model has sent ahead."""
        pushed = []
        for session_id in session_ids:
            state, session = self._states[session_id], self._lookup.session(session_id)
            end = (len(session), session.token_ids[-1])
            sent = state.ahead.get(end)
            state.ahead.clear()
            if sent is not None and session.depth:
                state.answered = end
                if not self._is_quick:
                    state.sent = _Sent(sent.position, sent.token_ids)
                pushed += self._with_outcomes(sent)[1:]
        return pushed

    def _least_length(self, session: Session) -> float:
        """What a look-up must promise to be preferred to the model, or to the quick source."""
        prior = self._rates[session.sampling.is_greedy].rate(INITIAL_RATE)
        rate = self._states[session.session_id].acceptance.rate(prior)
        return expected_length([rate] * session.depth)

    def _learn(self, commit: Commit) -> None:
        """Compares what the model proposed with what was committed.

        A target may verify fewer tokens than it was sent. For greedy requests that makes no
        difference: the committed tokens show what each would have been. For sampled ones the last
        committed token may differ only because nothing was verified there, which counts a little
        against the model.
        """
        state = self._states[commit.session_id]
        sent, state.sent = state.sent, None
        if sent is None or sent.position != commit.position:
            return
        pairs = list(zip(sent.token_ids, commit.token_ids, strict=False))
        num_agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        is_greedy = self._lookup.session(commit.session_id).sampling.is_greedy
        for acceptance in (state.acceptance, self._rates[is_greedy]):
            acceptance.observe(len(pairs), num_agreed)
