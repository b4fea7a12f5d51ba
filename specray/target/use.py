"""Whether what drafts answer is as good as what was asked for."""

from collections.abc import Sequence
from typing import NamedTuple

from specray.control.planner import Planner
from specray.control.survival import Offer
from specray.target.offers import Offers
from specray.target.patience import Patience
from specray.target.session import Session


class Share(NamedTuple):
    """What a step may verify for one request, and how much of it pays."""

    session: Session
    offer: Offer
    depth: int
    is_answer: bool  # of a draft that was asked for it


class Use:
    """Tells `Patience` of answers that are not worth verifying, unlike what was asked.

    What would not be verified either if it were as good as was thought when it was asked for, as
    there is a prefill beside it or no room, says nothing of drafts.
    """

    def __init__(self, offers: Offers, planner: Planner, patience: Patience) -> None:
        """Takes who knows what, and whom to tell."""
        self._offers = offers
        self._planner = planner
        self._patience = patience
        self._shares: Sequence[Share] = ()
        self._num_plain = 0

    def note(self, shares: Sequence[Share], num_plain: int) -> None:
        """A step begins with these, and so many further requests that decode."""
        self._shares, self._num_plain = shares, num_plain

    def learn(self) -> None:
        """While it computes, as that takes a plan of its own."""
        shares, self._shares = self._shares, ()
        answers = [share for share in shares if share.is_answer]
        num_used = sum(share.depth > 0 for share in answers)
        num_worse = self._num_worse(shares) if num_used < len(answers) else 0
        self._patience.observe_use(num_used, num_worse, is_trial=self._planner.is_probing)

    def _num_worse(self, shares: Sequence[Share]) -> int:
        """Unused answers that would be verified if they were as was thought."""
        are_unused = [share.is_answer and share.depth == 0 for share in shares]
        asked = [
            self._offers.of_tokens(s.session, s.session.wanted_depth) if is_unused else s.offer
            for s, is_unused in zip(shares, are_unused, strict=True)
        ]
        depths = self._planner.plan(asked, self._num_plain).depths
        return sum(u and depth > 0 for u, depth in zip(are_unused, depths, strict=True))
