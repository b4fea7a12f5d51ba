"""When what is drafted ahead has to leave, and how deep to answer a commit that waits."""

import math
from collections.abc import Sequence
from itertools import takewhile

_FLIGHT_GAIN, _EARLY = 0.05, 0.25  # of each flight, and how many of them are shorter than expected
_LEAD_GAIN, _LATE = 0.02, 0.25  # of a flight, and how many continuations may come too late
_MOST_LEAD = 0.5  # of a flight
_PASS_DOUBT = 0.98  # of the confidence, kept at each flight: passes may be shorter by now
_RATE_GAIN = 0.05  # of each commit, in how many tokens it adds and how long it takes
_PAUSE = 4.0  # mean flights, after which a session rests, or its target does


class Rhythm:
    """When a commit is to be expected, and what is worth beginning before it."""

    def __init__(self) -> None:
        # Most last longer. Apart for what was sent ahead and answers, for which a step may wait.
        self._flight_s = {True: 0.0, False: 0.0}
        self._mean_flight_s = self._mean_tokens = 0.0
        self._lead_s = 0.0  # a continuation leaves so much earlier than its commit comes
        self._confidence = 1.0  # in what is known of passes

    def observe_flight(self, seconds: float, num_tokens: int, *, was_ahead: bool) -> None:
        """Learns from a commit of so many tokens how long a proposal was out.

        Args:
            seconds: since it was answered, or its own commit had come if it was sent ahead.
            num_tokens: that the commit adds.
            was_ahead: whether it was sent before its own commit came.
        """
        if not self._mean_flight_s:
            self._mean_flight_s, self._mean_tokens = seconds, num_tokens
        seconds = min(seconds, _PAUSE * self._mean_flight_s)
        expected_s = self._flight_s[was_ahead] or seconds
        share = _EARLY if seconds > expected_s else _EARLY - 1
        self._flight_s[was_ahead] = expected_s * (1 + _FLIGHT_GAIN * share / _EARLY)
        self._mean_flight_s += _RATE_GAIN * (seconds - self._mean_flight_s)
        self._mean_tokens += _RATE_GAIN * (num_tokens - self._mean_tokens)
        self._confidence *= _PASS_DOUBT

    def observe_pass(self) -> None:
        """Notes that a pass has run, so that it is known how long they take now.

        Without, passes that once took too long would never be tried again.
        """
        self._confidence = 1.0

    def observe_continuation(self, *, is_in_time: bool) -> None:
        """Learns whether one whose outcome came was at the target when its step could begin.

        It has to leave a round trip before its commit comes here. Nobody tells how long that is.
        """
        change = -_LATE / (1 - _LATE) if is_in_time else 1.0
        flight_s = self._flight_s[True] or self._mean_flight_s
        lead_s = self._lead_s + _LEAD_GAIN * change * flight_s
        self._lead_s = min(max(0.0, lead_s), _MOST_LEAD * flight_s)

    def left_s(self, elapsed_s: float, *, was_ahead: bool) -> float:
        """Until what is drafted for the next commit has to leave; infinite if that is not known.

        More than that the longer no pass has run.

        Args:
            elapsed_s: since the flight began.
            was_ahead: see `observe_flight`.
        """
        flight_s = self._flight_s[was_ahead]
        lead_s = min(self._lead_s, _MOST_LEAD * flight_s)
        left_s = flight_s - lead_s - elapsed_s if flight_s else math.inf
        return left_s / self._confidence if left_s > 0 else left_s

    def is_running(self, elapsed_s: float) -> bool:
        """Whether a flight that began so long ago is likely to be that of a step that runs."""
        return elapsed_s < _PAUSE * self._mean_flight_s

    def answer_depth(
        self, most: int, survivals: Sequence[float], num_sessions: int, pass_s: float
    ) -> int:
        """How many tokens are worth it in answers for which a step is held back.

        One more takes a pass, in which all sessions might have gone on.

        Args:
            most: what is asked for.
            survivals: of a proposed token, for each session that is to be answered.
            num_sessions: in the step, these among them.
            pass_s: how long one pass for the answers takes.

        Returns:
            At least 1, at most `most`; that before anything is known.
        """
        if not self._mean_flight_s:
            return most
        lost = num_sessions * self._mean_tokens * pass_s / self._mean_flight_s
        worthwhile = (sum(rate**depth for rate in survivals) > lost for depth in range(2, most + 1))
        return 1 + sum(takewhile(bool, worthwhile))
