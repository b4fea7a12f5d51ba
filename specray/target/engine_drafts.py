"""What vLLM's own drafter proposes inside the target, such as an EAGLE-3 head.

It drafts behind each step, for all requests, before the next is planned; so how deep is decided a
step ahead. Where that does not pay, or speculation is off, it does not run.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from specray.control.drafting import DraftingDepth
from specray.control.planner import Planner
from specray.control.survival import Offer, at_most
from specray.target.offers import Offers
from specray.target.session import Session
from specray.types import Proposal, SpeculationPolicy


class Drafter(NamedTuple):
    """What is to be known of a method of vLLM's."""

    max_depth: int
    is_fixed: bool = False  # drafts so many tokens, or none
    has_context: bool = True  # keeps keys and values of its own: see `drafter_context`
    is_shared: bool = False  # copies from answers to other requests


NO_DRAFTER = Drafter(0, has_context=False)
"""For engines whose proposals all come from outside."""


class EngineDrafts:
    """Its proposals, and how deep it is to draft. Used from the engine's thread.

    Exactness. It drafts greedily, so a proposal is a function of the request's tokens, or of other
    answers, and each token counts as a point mass. Others may have been drawn by the same random
    numbers as a request's with the same seed, which gets no copies of them.
    """

    def __init__(self, drafter: Drafter, offers: Offers, planner: Planner) -> None:
        """Takes what drafts, and who knows what."""
        self._drafter = drafter
        self._offers = offers
        self._planner = planner
        self._depth = DraftingDepth(drafter.max_depth, is_fixed=drafter.is_fixed)
        self._drafted: dict[int, Proposal] = {}  # by session
        self._num_due = 0  # tokens that it drafts behind the step that runs, or has just ended
        self._behind: Collection[int] = ()  # sessions of which it has missed tokens

    @property
    def is_on(self) -> bool:
        """Whether it drafts for requests of which it has missed nothing."""
        return self._depth.depth > 0

    @property
    def is_trying(self) -> bool:
        """Whether it drafts only to see what that brings."""
        return self._depth.is_trying

    def close(self, session_id: int) -> None:
        """Forget a session."""
        self._drafted.pop(session_id, None)

    def begin_step(self, sessions: Sequence[Session], behind: Collection[int]) -> int:
        """A step begins.

        Args:
            sessions: Of which it computes tokens, of prompts too.
            behind: Those of them of which the drafter has missed some.

        Returns:
            Tokens that are to be drafted for each request behind it; 0: the drafter is not to run.
        """
        self._drafted.clear()
        self._behind = behind
        # With its next token a session must still have room for one that was drafted.
        is_of_use = any(s.room() > 1 and s.session_id not in behind for s in sessions)
        self._num_due = self._depth.depth if is_of_use else 0
        return self._num_due

    def note(self, session: Session, token_ids: Sequence[int]) -> None:
        """It has drafted these for a session, behind all its tokens."""
        is_tied = self._drafter.is_shared and not session.is_shareable
        if not token_ids or session.session_id in self._behind or is_tied:
            return
        length = len(session.token_ids)
        last_token_id = session.token_ids[length - 1 :][0]
        self._drafted[session.session_id] = Proposal(
            session.session_id, length, last_token_id, tuple(token_ids), "engine"
        )

    def find(self, session: Session) -> Proposal | None:
        """What it has drafted for the coming step, as far as it may be verified."""
        proposal = self._drafted.get(session.session_id)
        if proposal is None or proposal.position != len(session.token_ids):
            return None
        cap = self._offers.cap(session)
        return self._offers.cut(session, proposal, None, cap) if cap > 0 else None

    def offer(self, session: Session) -> Offer | None:
        """What it will have drafted for the coming step, before it has; None for nothing."""
        if self._num_due == 0 or session.session_id in self._behind:
            return None
        return self._offers.of_tokens(session, self._num_due, "engine")

    def offer_of(self, session: Session, proposal: Proposal) -> Offer:
        """What a proposal of its is judged by: in a trial, as if it had drafted all that it may."""
        if self.is_trying:
            return self._offers.of_tokens(session, self._drafter.max_depth, "engine")
        return self._offers.of_proposal(session, proposal)

    def observe_choice(self, *, is_beaten: bool) -> None:
        """Whether something else is verified for a session that it has drafted for."""
        self._depth.observe_choice(is_beaten=is_beaten)

    def observe_verification(self) -> None:
        """A step has verified a proposal of its."""
        self._depth.observe_verification()

    def observe_step(self, num_requests: int, seconds: float, *, is_decode_only: bool) -> None:
        """A step of so many requests is over, behind which it has drafted for so long."""
        if self._num_due > 0:
            self._depth.observe_drafting(
                self._num_due, num_requests, seconds, is_decode_only=is_decode_only
            )

    def plan(
        self,
        sessions: Sequence[Session],
        num_others: int,
        policy: SpeculationPolicy,
        *,
        may_draft: bool = True,
    ) -> None:
        """Decide how deep it drafts behind the coming step.

        By what it brings to those that it can draft for; where it has missed tokens of all, or has
        been taken up just now, by what it would bring if it had missed none, as it will not have of
        requests to come.

        Args:
            sessions: That decode, and may speculate.
            num_others: Further requests that decode.
            policy: The live one.
            may_draft: Whether the coming step may verify anything.
        """
        most = min(policy.max_depth, self._drafter.max_depth)
        if not policy.is_enabled or most < 1:
            self._depth.stop()
            return
        if not may_draft and self._num_due > 0:
            self._depth.observe_choice(is_beaten=True)  # whatever it drafts is in vain
        able = sessions
        if not self._depth.is_settling:
            able = [s for s in sessions if s.session_id not in self._behind] or sessions
        num_others += len(sessions) - len(able)
        offers = [self._offers.of_tokens(s, most, "engine") for s in able]
        if not any(offer.max_depth for offer in offers):
            return  # all are about to end, which says nothing of the next
        if not self._planner.weighs_costs:
            self._depth.follow(most, self._planner.plan(offers, num_others).depths)
            return
        self._depth.choose(
            most,
            len(offers) + num_others,
            lambda depth, drafting_s: self._planner.plan(
                at_most(offers, depth), num_others, drafting_s
            ),
        )
