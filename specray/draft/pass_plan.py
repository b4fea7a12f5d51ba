"""What a pass of drafting ahead computes: whatever is likeliest to be verified.

What a token is worth is the probability of its outcome times the chance that those before it
survive. A pass takes the worthiest, as many of them as raise worth over time: more rows cover more
outcomes but make each pass slower, and a continuation needs as many passes as it has tokens. From
that goes what is lost where a commit comes during the pass and has to wait for its end; if more is
lost than gained, no pass is run. None of that looks at a branch's tokens, only at how many there
are.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import merge, nlargest
from itertools import islice
from typing import NamedTuple

import numpy as np

from specray.config import MAX_FAN_OUT
from specray.control.batch_cost import BatchCost
from specray.draft.branch import Branch
from specray.draft.followed import Followed
from specray.draft.outcomes import OutcomeModel

_LEAST_PROBABILITY = 1e-4  # of an outcome that is looked at


class Choice(NamedTuple):
    """An outcome to begin a branch for."""

    followed: Followed
    probability: float
    num_accepted: int
    added: int


class _Wanted(NamedTuple):
    """Something that a pass may compute."""

    value: float  # the chance that the target comes to verify what it adds
    num_tokens: int
    what: Followed | Branch | Choice

    @property
    def worth(self) -> float:
        """Of each token, by which a pass's time grows."""
        return self.value / self.num_tokens


class PassPlan:
    """Chooses among branches, outcomes to begin with, and sessions whose flight is not computed."""

    def __init__(self, outcomes: OutcomeModel, cost: BatchCost, fan_out: int) -> None:
        """Takes what is known of outcomes and of passes, by their tokens.

        Args:
            outcomes: how verifications end.
            cost: how long passes take.
            fan_out: branches per session, on average.
        """
        self._outcomes = outcomes
        self._cost = cost
        self.fan_out = fan_out  # may be changed from any thread

    def choose(
        self,
        sessions: Collection[Followed],
        feedable: Collection[Followed],
        most: int,
        left_s: float,
        loss: float,
    ) -> list[Followed | Branch | Choice]:
        """What to compute one more token of, or all that a flight lacks.

        Nothing if that costs more than it brings.

        Args:
            sessions: whose outcomes to draft for.
            feedable: those of them of whose flight something is to be computed.
            most: rows of a pass.
            left_s: longest that the pass should take; one token it may take in any case.
            loss: tokens that a pass costs, over the square of its seconds.
        """
        wanted = nlargest(
            most, self._wanted(sessions, feedable, most, left_s), key=lambda item: item.worth
        )
        return [item.what for item in wanted[: self._num_worthwhile(wanted, left_s, loss)]]

    def _num_worthwhile(self, wanted: Sequence[_Wanted], left_s: float, loss: float) -> int:
        """How many, the worthiest first, bring most per second."""
        value, num_tokens, best, num = 0.0, 0, 0.0, 0
        for index, item in enumerate(wanted, start=1):
            value += item.value
            num_tokens += item.num_tokens
            seconds = self._cost.expected_s(num_tokens)
            if not seconds:
                return len(wanted)  # nothing is known yet
            net = value - loss * seconds**2
            if net > 0 and (index == 1 or seconds <= left_s) and net >= best * seconds:
                best, num = net / seconds, index
        return num

    def _wanted(
        self,
        sessions: Collection[Followed],
        feedable: Collection[Followed],
        most: int,
        left_s: float,
    ) -> Iterator[_Wanted]:
        """What there is to compute.

        Of outcomes to begin with, the likeliest within the budget. Some of that is kept for
        proposals accepted whole where it is not known yet what may follow them.
        """
        num_kept, num_begun = 0.0, 0
        for followed in feedable:
            reach = self._outcomes.reach(
                followed.flight, followed.session.sampling, followed.verified_rate
            )
            num_kept += self.fan_out * reach
            num_tokens = followed.num_to_feed
            if num_tokens == 1 or self._cost.expected_s(num_tokens) <= left_s:
                yield _Wanted(reach, num_tokens, followed)
        for followed in sessions:
            survival = self._outcomes.survival_rate(followed.session.sampling)
            num_begun += len(followed.branches)
            for branch in followed.branches.values():
                if not branch.is_complete:
                    value = branch.probability * survival ** len(branch.token_ids)
                    yield _Wanted(value, 1, branch)
        num_left = self.fan_out * len(sessions) - num_begun - round(num_kept)
        if num_left > 0:
            # Merged lazily: of the many outcomes few are ever taken.
            choices = merge(*map(self._choices, sessions), key=lambda choice: -choice.probability)
            for choice in islice(choices, min(num_left, most)):
                yield _Wanted(choice.probability, 1, choice)

    def _choices(self, followed: Followed) -> Iterator[Choice]:
        """What a session may begin with, the likeliest first.

        No more than its target holds, which forgets the oldest: what was begun as the likeliest.
        """
        if followed.likeliest is None:
            followed.likeliest = self._likeliest(followed)
        num_left = MAX_FAN_OUT - len(followed.branches)
        for probability, k, added in followed.likeliest:
            if num_left <= 0:
                return
            outcome = (len(followed.session) + k + 1, added)
            is_taken = (k, added) in followed.branches or outcome in followed.left_out
            if k <= followed.num_fed and not is_taken:
                num_left -= 1
                yield Choice(followed, probability, k, added)

    def _likeliest(self, followed: Followed) -> list[tuple[float, int, int]]:
        flight = followed.flight
        probabilities = self._outcomes.probabilities(
            flight, followed.session.sampling, followed.verified_rate
        )
        rows, columns = np.nonzero(probabilities >= _LEAST_PROBABILITY)
        odds = probabilities[rows, columns].tolist()
        added = flight.candidates.token_ids[rows, columns].tolist()
        return sorted(zip(odds, rows.tolist(), added, strict=True), reverse=True)
