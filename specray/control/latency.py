"""How long a proposal takes to arrive after its commit left, and how often requests arrive."""

import math

_ARRIVALS_WINDOW_S = 20.0
_GAIN = 0.1  # of each measurement, once there are some; the first ones are simply averaged


class LatencyEstimate:
    """Smoothed mean and deviation, as TCP estimates a round trip (RFC 6298)."""

    def __init__(self) -> None:
        self._num_observed = 0
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    def observe(self, seconds: float) -> None:
        """Learn from a proposal, late or in time."""
        self._num_observed += 1
        if self._mean_s is None:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        gain = max(_GAIN, 1 / self._num_observed)
        self._deviation_s += gain * (abs(seconds - self._mean_s) - self._deviation_s)
        self._mean_s += gain * (seconds - self._mean_s)

    @property
    def mean_s(self) -> float | None:
        """Expected seconds; None before the first proposal."""
        return self._mean_s

    @property
    def patience_s(self) -> float | None:
        """Seconds after which waiting on is no longer worth it; None before the first proposal."""
        return None if self._mean_s is None else self._mean_s + 3 * self._deviation_s


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
