"""Which proposal a step may verify for a session: its draft's, or else the target's own."""

from specray.control.planner import Planner
from specray.target.buffer import Arrival, ProposalBuffer
from specray.target.counters import Counters
from specray.target.offers import Offers
from specray.target.patience import Patience
from specray.target.session import Session
from specray.target.stop_gap import StopGap
from specray.target.telling import Streams
from specray.types import Proposal, Source


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
    ) -> None:
        """Takes who knows what, and whom to tell."""
        self._buffer = buffer
        self._streams = streams
        self._planner = planner
        self._patience = patience
        self._offers = offers
        self._stop_gap = stop_gap
        self._counters = counters
        self.source: Source = "prompt_lookup"  # of the latest proposal for anyone

    def take(self, session: Session) -> Proposal | None:
        """The session's proposal, or else the target's own; no copy where the draft has none."""
        arrival = self._buffer.take(session.session_id)
        is_covered = self._buffer.is_covered(session.session_id)
        was_due = session.is_due
        self._book(session, arrival, is_covered=is_covered)
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
            if arrival is not None:
                self._patience.observe_answer(session, arrival.at, len(arrival.proposal.token_ids))
            elif is_covered:
                self._patience.observe_answer(session, session.committed_at)
            else:
                self._patience.observe_absence(session)
                self._counters.stats.num_misses += 1
        session.is_due = False

    def find_stop_gap(self, session: Session) -> Proposal | None:
        """What the target proposes itself, where that is wanted."""
        if not self._streams.policy.has_stop_gap or not self._planner.weighs_costs:
            return None
        found = self._stop_gap.find(session, self._offers.cap(session))
        # A prompt may hold ids that the model has no logits for, such as a padding token's.
        return found if found is not None and self._buffer.is_valid(found) else None

    def knows_as_much(self, session: Session) -> bool:
        """Whether the session's draft would hardly say more than the target's own n-grams.

        To a sampled request it ships what its tokens were drawn from, and more of them survive.
        """
        is_drawn = not session.sampling.is_greedy and self._offers.is_trusted(session)
        is_trying = self._planner.is_probing or not self._planner.weighs_costs
        has_ngrams = self._stop_gap.has_ngrams and self._streams.policy.has_stop_gap
        return session.source == "ngram" and has_ngrams and not is_drawn and not is_trying


def _is_late(arrival: Arrival, session: Session) -> bool:
    """Whether it was drafted ahead, and yet not there when its step could have begun."""
    return arrival.proposal.draft_time_us == 0 and arrival.at > session.committed_at
