"""Whether to hold a step back for proposals that are due, and until when."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from specray.control.planner import Planner
from specray.control.survival import Offer
from specray.target.buffer import ProposalBuffer
from specray.target.offers import Offers
from specray.target.patience import Patience
from specray.target.session import Session
from specray.types import Proposal

_GAIN = 0.1  # of each step, in how much later than commits it could begin


class Wait(NamedTuple):
    """A step that is held back for proposals that are due."""

    awaited: Sequence[Session]
    started: float  # on the clock of `Speculation`, as is the deadline
    deadline: float

    @property
    def session_ids(self) -> list[int]:
        """Whose proposals are waited for."""
        return [session.session_id for session in self.awaited]


class Waiting:
    """Weighs what a wait would bring against what is here without.

    It is one deadline for all requests: one for each would split the batch into cohorts and
    multiply the steps.
    """

    def __init__(
        self,
        buffer: ProposalBuffer,
        offers: Offers,
        planner: Planner,
        patience: Patience,
        clock: Callable[[], float],
    ) -> None:
        """Takes who knows what, and a clock in seconds."""
        self._buffer = buffer
        self._offers = offers
        self._planner = planner
        self._patience = patience
        self._clock = clock
        self._is_trial = False  # whether the coming wait is just to see
        self._free_s: float | None = None  # from commits until a step may begin: no wait's loss

    def missing(self, sessions: Sequence[Session]) -> list[Session]:
        """Those whose proposal is due and may still come; late answers are heard of here."""
        for router in self._buffer.take_heard():
            self._patience.hear_of_router(router)
        missing = [s for s in sessions if s.is_due and not self._buffer.is_settled(s.session_id)]
        for session in missing:
            if self._buffer.take_sign_of_life(session.session_id):
                self._patience.hear_of(session)  # too late for its step, but it answers
        return missing

    def choose(
        self,
        sessions: Sequence[Session],
        missing: Sequence[Session],
        own_offer: Callable[[Session], Offer | None],
        known: Collection[int],
        num_others: int,
        max_wait_s: float,
    ) -> None:
        """Note whose proposals the coming step is to be held back for: `Session.is_awaited`.

        Args:
            sessions: All that are to decode.
            missing: Those of them whose proposals could be waited for.
            own_offer: What one of these could verify instead.
            known: Those of the missing whose drafts would hardly say more than the target knows.
            num_others: Further requests in the step.
            max_wait_s: The longest that is allowed.
        """
        owing = [s for s in missing if self._patience.has_left_for(s)]
        awaited = [s for s in owing if s.session_id not in known]
        if owing and not awaited:
            self._patience.observe_no_need()
        if not awaited:
            return
        is_forced = self._planner.is_probing or not self._planner.weighs_costs
        self._is_trial = not is_forced and self._patience.is_trial_due
        is_worth_it = (is_forced or self._is_trial) or self._is_worth_it(
            sessions, awaited, own_offer, num_others, max_wait_s
        )
        if not is_worth_it:
            self._patience.observe_refusal()
            return
        for session in awaited:
            session.is_awaited = True

    def begin(self, sessions: Sequence[Session], max_wait_s: float) -> Wait | None:
        """The wait for those that were chosen; None if all are here, or it is too late.

        Args:
            sessions: All that decode in the step.
            max_wait_s: The longest that is allowed.
        """
        started = self._clock()
        self._observe_preparation(sessions, started)
        awaited = [s for s in self.missing(sessions) if s.is_awaited]
        if not awaited:
            return None
        if self._is_trial:
            self._patience.observe_trial()
        deadline = self._patience.deadline(awaited, max_wait_s)
        if deadline <= started:
            self._patience.observe_overdue(awaited, deadline)
            return None
        return Wait(awaited, started, deadline)

    def _observe_preparation(self, sessions: Sequence[Session], now_s: float) -> None:
        committed_at = max((s.committed_at for s in sessions if s.is_due), default=None)
        if committed_at is not None:
            free_s = now_s - committed_at
            before_s = self._free_s if self._free_s is not None else free_s
            self._free_s = before_s + _GAIN * (free_s - before_s)

    def end(self, wait: Wait) -> float:
        """Learn from a wait that is over: all its proposals are here, or its time is up.

        A session whose draft was lost meanwhile was neither answered nor waited for in vain.

        Returns:
            The seconds that it took.
        """
        awaited = [s for s in wait.awaited if not self._buffer.is_lost(s.session_id)]
        silent = [s for s in awaited if not self._buffer.is_settled(s.session_id)]
        if awaited:
            self._patience.observe_wait(awaited, silent, wait.deadline)
        return self._clock() - wait.started

    def _is_worth_it(
        self,
        sessions: Sequence[Session],
        awaited: Sequence[Session],
        own_offer: Callable[[Session], Offer | None],
        num_others: int,
        max_wait_s: float,
    ) -> bool:
        awaited_ids = {session.session_id for session in awaited}
        here, soon = [], []
        for session in sessions:
            proposal = self._buffer.peek(session.session_id)
            num_here = _num_tokens(session, proposal)
            offer = self._offers.of_tokens(session, num_here)
            is_awaited = session.session_id in awaited_ids
            own = own_offer(session) if num_here == 0 and is_awaited else None
            offer = own or offer
            here.append(offer)
            num_wanted = self._patience.expected_tokens(session.wanted_depth)
            wanted = self._offers.of_tokens(session, num_wanted, session.answer_source)
            soon.append(wanted if is_awaited else offer)
        deepest = max(session.wanted_depth for session in awaited)
        answer_s = self._patience.answer_s(max_wait_s, deepest)
        left_s = max(0.0, answer_s - (self._free_s or 0.0))
        now = self._planner.plan(here, num_others)
        later = self._planner.plan(soon, num_others, left_s)
        return later.goodput > now.goodput


def _num_tokens(session: Session, proposal: Proposal | None) -> int:
    """How many tokens are here; of drawn ones as many as were asked for.

    Where a drawn chain ends depends on its tokens, and what is waited for may decide whether these
    are verified: so their number may have no part in that.
    """
    if proposal is None or not proposal.token_ids:
        return 0
    return len(proposal.token_ids) if proposal.distributions is None else session.wanted_depth
