"""How long a proposal takes to arrive after its commit left, and how often requests arrive."""

import math
from collections.abc import Callable

from specray.control.batch_cost import BatchCost

_ARRIVALS_WINDOW_S = 20.0
_MEMORY = 0.97  # of what is known of answers, at each: some 30 count
_GAIN = 0.1  # of each, in how far they are off, once there are some

WaitTime = Callable[[int], float]
"""Seconds that a step is held back, on average, for proposals of so many tokens."""


class AnswerTime:
    """How long an answer takes, by how many tokens it has.

    Mean and deviation as TCP estimates a round trip's (RFC 6298), but the mean is a line: a draft
    that takes its time for each token is worth waiting for if it is asked for few.
    """

    def __init__(self) -> None:
        self._cost = BatchCost(_MEMORY)
        self._num_observed = 0
        self._deviation_s = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from an answer of at least one token, late or in time."""
        expected_s = self.mean_s(num_tokens)
        self._cost.observe(num_tokens, seconds)
        self._num_observed += 1
        deviation_s = seconds / 2 if expected_s is None else abs(seconds - expected_s)
        gain = max(_GAIN, 1 / self._num_observed)
        self._deviation_s += gain * (deviation_s - self._deviation_s)

    def fade(self) -> None:
        """What is hardly asked for may have changed: the next answer counts like all before.

        For the mean only: one that is off by far would else be expected to be the rule.
        """
        self._cost.fade()

    def mean_s(self, num_tokens: int) -> float | None:
        """Expected seconds; None before the first answer."""
        return self._cost.expected_s(num_tokens) if self._num_observed else None

    def mostly_s(self, num_tokens: int) -> float | None:
        """Seconds within which most come; None before the first answer."""
        return self._cost.expected_s(num_tokens) + self._deviation_s if self._num_observed else None

    def patience_s(self, num_tokens: int) -> float | None:
        """Seconds after which waiting on is no longer worth it; None before the first answer."""
        expected_s = self.mean_s(num_tokens)
        return None if expected_s is None else expected_s + 3 * self._deviation_s


class ArrivalRate:
    """Requests per second over the last while, older ones counting less."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._per_s = 0.0

    def observe(self, now_s: float) -> None:
        """A request has come."""
        self.advance(now_s)
        self._per_s += 1 / _ARRIVALS_WINDOW_S

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        passed_s = max(0.0, now_s - self._now_s)
        self._now_s += passed_s
        self._per_s *= math.exp(-passed_s / _ARRIVALS_WINDOW_S)

    @property
    def per_s(self) -> float:
        """As of the latest of the times that it was told."""
        return self._per_s
