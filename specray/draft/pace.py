"""When what is drafted ahead has to leave, and how deep to answer a commit that waits."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

_FLIGHT_GAIN, _EARLY = 0.05, 0.25  # of each flight, and how many of them are shorter than expected
_LEAD_GAIN, _LATE = 0.02, 0.25  # of a flight, and how many continuations may come too late
_MOST_LEAD = 0.5  # of a flight
_PASS_DOUBT = 0.98  # of the confidence, kept at each flight: passes may be shorter by now
_RATE_GAIN = 0.05  # of each commit, in how many tokens it adds and how long it takes
_PAUSE = 4.0  # mean flights, after which a session rests, or its target does
_VERIFIED_PRIOR, _PRIOR_STRENGTH = 0.7, 8.0  # of proposals in time; observations that it counts for
_FORGETTING = 0.999  # per observation of one
_MOST_TARGETS = 256  # whose rhythms are kept; the one that was silent for longest goes


class Rhythm:
    """When a target's commits are to be expected, and what is worth beginning before them."""

    def __init__(self) -> None:
        # Most last longer. Apart for what was sent ahead and answers, for which a step may wait.
        self._flight_s = {True: 0.0, False: 0.0}
        self._mean_flight_s = self._mean_tokens = 0.0
        self._lead_s = 0.0  # a continuation leaves so much earlier than its commit comes
        self._confidence = 1.0  # in what is known of passes
        # Whether a proposal is verified at all: one that answers a commit may come too late.
        self._num_sent = {True: _PRIOR_STRENGTH, False: _PRIOR_STRENGTH}
        self._num_verified = dict.fromkeys((True, False), _VERIFIED_PRIOR * _PRIOR_STRENGTH)

    def verified_rate(self, *, was_ahead: bool) -> float:
        """How often proposals of a kind are there when their step begins."""
        return self._num_verified[was_ahead] / self._num_sent[was_ahead]

    def observe_verification(
        self, proposed: Sequence[int], committed: Sequence[int], *, was_ahead: bool
    ) -> None:
        """Learns whether a proposal was there for its step; only a right one shows that.

        Args:
            proposed: its tokens.
            committed: what the step added: one token if it verified nothing.
            was_ahead: see `observe_flight`.
        """
        if committed[0] not in proposed[:1]:
            return
        is_verified = len(committed) > 1
        self._num_sent[was_ahead] = self._num_sent[was_ahead] * _FORGETTING + 1
        self._num_verified[was_ahead] = self._num_verified[was_ahead] * _FORGETTING + is_verified

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
        One that was there in part counts as there.
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

    def pass_loss(self, elapsed_s: float, *, was_ahead: bool) -> float:
        """Tokens that a session loses by a pass, over the square of the pass's seconds.

        A commit that comes during a pass waits for half of it in the mean, and with it the tokens
        that would have come meanwhile. The longer a pass, the likelier that is. Less the longer no
        pass has run.

        Args:
            elapsed_s: since the flight began.
            was_ahead: see `observe_flight`.
        """
        flight_s = self._flight_s[was_ahead]
        ending = 1.0 if 0 < flight_s <= elapsed_s else _EARLY
        return 0.5 * self._confidence * ending * self._mean_tokens * self.flights_per_s**2

    def is_running(self, elapsed_s: float) -> bool:
        """Whether a flight that began so long ago is likely to be that of a step that runs."""
        return elapsed_s < _PAUSE * self._mean_flight_s

    @property
    def flights_per_s(self) -> float:
        """Commits of a session; 0 before anything is known."""
        return 1 / self._mean_flight_s if self._mean_flight_s else 0.0

    @property
    def mean_tokens(self) -> float:
        """That a commit adds."""
        return self._mean_tokens


class Rhythms:
    """Those of all targets that share a draft: a large one's steps take longer than a small one's.

    Of a target that is new nothing is known.
    """

    def __init__(self) -> None:
        self._rhythms: OrderedDict[str, Rhythm] = OrderedDict()

    def of(self, target: str) -> Rhythm:
        """A target's."""
        rhythm = self._rhythms.get(target)
        if rhythm is None:
            rhythm = self._rhythms[target] = Rhythm()
            if len(self._rhythms) > _MOST_TARGETS:
                self._rhythms.popitem(last=False)
        else:
            self._rhythms.move_to_end(target)
        return rhythm

    def observe_pass(self) -> None:
        """See `Rhythm.observe_pass`."""
        for rhythm in self._rhythms.values():
            rhythm.observe_pass()


def answer_depth(
    most: int, survivals: Sequence[float], rhythms: Sequence[Rhythm], pass_s: float
) -> int:
    """How many tokens are worth it in answers for which steps are held back.

    One more takes a pass, in which all sessions might have gone on.

    Args:
        most: what is asked for.
        survivals: of a proposed token, for each session that is to be answered.
        rhythms: of the targets of all sessions in their steps, these among them.
        pass_s: how long one pass for the answers takes.

    Returns:
        At least 1, at most `most`; that before anything is known.
    """
    if not any(rhythm.flights_per_s for rhythm in rhythms):
        return most
    lost = pass_s * sum(rhythm.mean_tokens * rhythm.flights_per_s for rhythm in rhythms)
    worthwhile = (sum(rate**depth for rate in survivals) > lost for depth in range(2, most + 1))
    return 1 + sum(takewhile(bool, worthwhile))
