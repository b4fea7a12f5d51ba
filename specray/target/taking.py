"""Which proposal a step may verify for a session: its draft's, or one of the target's own."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specray.control.planner import Planner
from specray.control.survival import Offer
from specray.target.buffer import Arrival, ProposalBuffer
from specray.target.counters import Counters
from specray.target.engine_drafts import EngineDrafts
from specray.target.offers import Offers
from specray.target.patience import Patience
from specray.target.session import Session
from specray.target.stop_gap import StopGap
from specray.target.telling import Streams
from specray.types import OWN_SOURCES, Proposal, Source

_TRIED_ONE_IN = 32  # of proposals that seem worse than the engine's own
_FORGOTTEN = 64  # commits of a session without an answer, after which who gave the last is unknown


class Taken(NamedTuple):
    """What a session may verify in a step."""

    session: Session
    proposal: Proposal
    tail: Proposal | None = None  # what the target guesses behind all of its tokens

    @property
    def is_answer(self) -> bool:
        """Whether it has tokens that a draft proposes, not the target itself."""
        return bool(self.proposal.token_ids) and self.proposal.source not in OWN_SOURCES


class Taking:
    """Takes what has come, and learns from what has not."""

    def __init__(
        self,
        buffer: ProposalBuffer,
        streams: Streams,
        planner: Planner,
        patience: Patience,
        offers: Offers,
        stop_gap: StopGap,
        counters: Counters,
        engine: EngineDrafts,
    ) -> None:
        """Takes who knows what, and whom to tell."""
        self._buffer = buffer
        self._streams = streams
        self._planner = planner
        self._patience = patience
        self._offers = offers
        self._stop_gap = stop_gap
        self._counters = counters
        self._engine = engine
        self.source: Source = "prompt_lookup"  # of the latest proposal for anyone
        self.answer_source: Source | None = None  # likewise; see `Session.answer_source`
        self._num_unanswered = 0  # likewise
        self.answered: set[int] = set()  # sessions for which drafts propose something in this step
        self._num_worse = 0  # proposals that were expected to get less far than the engine's own

    def introduce(self, session: Session) -> None:
        """A new session is judged by others' latest proposals until it has its own."""
        session.source, session.answer_source = self.source, self.answer_source
        session.num_unanswered = self._num_unanswered  # or short ones would never forget

    def take(self, sessions: Sequence[Session]) -> list[Taken]:
        """What those may verify for which something is there."""
        self.answered = set()
        taken = {session.session_id: self._take_from_outside(session) for session in sessions}
        taken |= self._weigh(sessions, taken)
        return [
            Taken(session, proposal, self._find_tail(session, proposal))
            for session in sessions
            if (proposal := taken[session.session_id]) is not None
        ]

    def _weigh(
        self, sessions: Sequence[Session], others: Mapping[int, Proposal | None]
    ) -> dict[int, Proposal]:
        """What the engine's own drafter proposes, where nothing else is expected to get further."""
        drafted, rivals = {}, []
        for session in sessions:
            own, other = self._engine.find(session), others[session.session_id]
            if own is None or not self._buffer.is_valid(own):
                continue
            drafted[session.session_id] = own
            if other is not None and other.token_ids:
                offer = self._engine.offer_of(session, own)
                rivals.append((session.session_id, offer, self._known_before(session, other)))
        beaten = self._beaten(rivals)
        for session_id in drafted:
            self._engine.observe_choice(is_beaten=session_id in beaten)
        tried = {i for i, *_ in rivals if i not in beaten and self._is_to_be_tried()}
        return {i: proposal for i, proposal in drafted.items() if i not in beaten | tried}

    def _is_to_be_tried(self) -> bool:
        """Whether what seems worse is verified, as what never is may be better than it seems."""
        self._num_worse += 1
        return self._num_worse % _TRIED_ONE_IN == 0

    def _beaten(self, rivals: Sequence[tuple[int, Offer, Offer]]) -> set[int]:
        """Of sessions and two offers for each, those whose second is expected to get further."""
        if not rivals:
            return set()
        offers = [offer for _, *pair in rivals for offer in pair]
        lengths = self._planner.survival.chains(offers).survivals.sum(axis=1).tolist()
        pairs = zip(lengths[::2], lengths[1::2], strict=True)
        return {i for (i, *_), (own, other) in zip(rivals, pairs, strict=True) if own < other}

    def _known_before(self, session: Session, proposal: Proposal) -> Offer:
        """The proposal as far as none of its drawn tokens tells, for these decide on themselves.

        Without what the target might put behind it.
        """
        if proposal.distributions is None:
            return self._offers.of_proposal(session, proposal)
        return self._offers.of_tokens(session, session.wanted_depth, proposal.source)

    def _take_from_outside(self, session: Session) -> Proposal | None:
        """Its draft's proposal, or else the target's copies; none where the draft has none."""
        arrival = self._buffer.take(session.session_id)
        is_covered = self._buffer.is_covered(session.session_id)
        was_due = session.is_due
        self._book(session, arrival, is_covered=is_covered)
        if arrival is not None and arrival.proposal.token_ids:
            self.answered.add(session.session_id)
        # Where a look-up finds nothing, nor do we in the same text.
        is_in_vain = session.source == "prompt_lookup" and self._stop_gap.only_copies_own_text
        if arrival is not None and (arrival.proposal.token_ids or is_in_vain):
            return arrival.proposal
        if was_due and is_covered and self._stop_gap.only_copies_own_text:
            return None
        return self.find_stop_gap(session)

    def _book(self, session: Session, arrival: Arrival | None, *, is_covered: bool) -> None:
        """Learn from what has come, or has not, of what was due."""
        if arrival is not None:
            session.source = self.source = arrival.proposal.source
            self._patience.hear_of(session)
            if arrival.proposal.token_ids:
                session.note_answer()
        if session.is_due:
            session.was_late = arrival is None or _is_late(arrival, session)
            self._note_answer_source(session, arrival)
            if arrival is not None:
                self._patience.observe_answer(session, arrival.at, len(arrival.proposal.token_ids))
            elif is_covered:
                self._patience.observe_answer(session, session.committed_at)
            else:
                self._patience.observe_absence(session)
                self._counters.stats.num_misses += 1
        session.is_due = False

    def _note_answer_source(self, session: Session, arrival: Arrival | None) -> None:
        """Who answers what was not drafted ahead; unknown after long without, as drafts change.

        One that is not waited for may be late each time, or leave it, so that nothing shows that.
        """
        session.num_unanswered += 1
        if arrival is not None and _is_telling(arrival.proposal):
            session.answer_source = self.answer_source = arrival.proposal.source
            session.num_unanswered = 0
        elif session.num_unanswered >= _FORGOTTEN:
            session.answer_source = self.answer_source = None
            session.num_unanswered = 0
        self._num_unanswered = session.num_unanswered

    def find_stop_gap(self, session: Session) -> Proposal | None:
        """What the target proposes itself, where that is wanted."""
        if not self._may_guess:
            return None
        return self._if_valid(self._stop_gap.find(session, self._offers.cap(session)))

    def _find_tail(self, session: Session, proposal: Proposal) -> Proposal | None:
        """What the target guesses behind a draft's proposal that is shorter than may be verified.

        Not where the draft has prepared for whatever may become of its own tokens, as others behind
        them would lead past that; nor where it knows as much of what follows.
        """
        room = self._offers.cap(session) - len(proposal.token_ids)
        is_whole = proposal.covers_outcomes or proposal.source in OWN_SOURCES
        if is_whole or room < 1 or not proposal.token_ids or not self._may_guess:
            return None
        if proposal.source == "prompt_lookup" and self._stop_gap.only_copies_own_text:
            return None
        return self._if_valid(self._stop_gap.find_tail(session, proposal.token_ids, room))

    @property
    def _may_guess(self) -> bool:
        return self._streams.policy.has_stop_gap and self._planner.weighs_costs

    def _if_valid(self, found: Proposal | None) -> Proposal | None:
        # A prompt may hold ids that the model has no logits for, such as a padding token's.
        return found if found is not None and self._buffer.is_valid(found) else None

    def own_offer(self, session: Session) -> Offer | None:
        """What the coming step could verify without its draft: known, or to be expected."""
        drafted = self._engine.offer(session)
        if drafted is not None:
            return drafted
        found = self.find_stop_gap(session)
        return self._offers.of_proposal(session, found) if found is not None else None

    def knows_as_much(self, session: Session) -> bool:
        """Whether the session's draft would hardly say more than the target's own n-grams.

        A hybrid's may: its model drafts ahead, and what was not drafted ahead n-grams answer. To a
        sampled request it ships what its tokens were drawn from, and more of them survive.
        """
        is_drawn = not session.sampling.is_greedy and self._offers.is_trusted(session)
        is_trying = self._planner.is_probing or not self._planner.weighs_costs
        has_ngrams = self._stop_gap.has_ngrams and self._streams.policy.has_stop_gap
        answers = session.answer_source or session.source
        return answers == "ngram" and has_ngrams and not is_drawn and not is_trying


def _is_telling(proposal: Proposal) -> bool:
    """Whether it was neither drafted ahead nor a copy."""
    return proposal.draft_time_us > 0 and proposal.source != "prompt_lookup"


def _is_late(arrival: Arrival, session: Session) -> bool:
    """Whether it was drafted ahead, and yet not there when its step could have begun."""
    return arrival.proposal.draft_time_us == 0 and arrival.at > session.committed_at
