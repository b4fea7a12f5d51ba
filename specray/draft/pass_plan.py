"""What a pass of drafting ahead computes: whatever is likeliest to be verified.

What a token is worth is the probability of its outcome times the chance that those before it
survive. A pass takes the worthiest, as many of them as raise worth over time: more rows cover more
outcomes but make each pass slower, and a continuation needs as many passes as it has tokens. None
of that looks at a branch's tokens, only at how many there are.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

import numpy as np

from specray.control.batch_cost import BatchCost
from specray.draft.branch import Branch
from specray.draft.followed import Followed
from specray.draft.outcomes import OutcomeModel

_LEAST_PROBABILITY = 0.003  # of an outcome that is worth a row of a pass


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
    ) -> list[Followed | Branch | Choice]:
        """What to compute one more token of, or all that a flight lacks.

        Args:
            sessions: whose outcomes to draft for.
            feedable: those of them of whose flight something is to be computed.
            most: rows of a pass.
            left_s: longest that the pass should take; one token it takes in any case.
        """
        wanted = nlargest(
            most, self._wanted(sessions, feedable, most, left_s), key=lambda item: item.worth
        )
        return [item.what for item in wanted[: self._num_worthwhile(wanted, left_s)]]

    def _num_worthwhile(self, wanted: Sequence[_Wanted], left_s: float) -> int:
        """How many, the worthiest first, bring most per second; the first in any case."""
        value, num_tokens, best, num = 0.0, 0, 0.0, 0
        for index, item in enumerate(wanted, start=1):
            value += item.value
            num_tokens += item.num_tokens
            seconds = self._cost.expected_s(num_tokens)
            if not seconds:
                return len(wanted)  # nothing is known yet
            if index == 1 or (seconds <= left_s and value >= best * seconds):
                best, num = value / seconds, index
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
            choices = self._choices(sessions)
            for choice in nlargest(min(num_left, most), choices, key=lambda c: c.probability):
                yield _Wanted(choice.probability, 1, choice)

    def _choices(self, sessions: Collection[Followed]) -> Iterator[Choice]:
        for followed in sessions:
            flight, session = followed.flight, followed.session
            if followed.probabilities is None:
                followed.probabilities = self._outcomes.probabilities(
                    flight, session.sampling, followed.verified_rate
                )
            rows, columns = np.nonzero(followed.probabilities >= _LEAST_PROBABILITY)
            for k, column in zip(rows.tolist(), columns.tolist(), strict=True):
                added = int(flight.candidates.token_ids[k, column])
                outcome = (len(session) + k + 1, added)
                is_taken = (k, added) in followed.branches or outcome in followed.left_out
                if k <= followed.num_fed and not is_taken:
                    yield Choice(followed, float(followed.probabilities[k, column]), k, added)
