"""What a step with draft tokens takes beside its forward pass, beyond what every step takes."""

from specray.control.load_size import is_other_size

_GAIN = 0.05  # of each step that took longer than the mean
_FAST_GAIN = 0.25  # of each that took less: pauses for other reasons are soon forgotten
_OUTLIER = 3.0  # times the mean, as far as a step counts
_RELIEF = 0.9  # of the difference, kept at each probe


class Overhead:
    """Compares the time between steps, before those with draft tokens and before those without.

    Proposals have to be chosen and handed to the engine, and what was accepted of them has to be
    booked. The step-time model does not see it, as it knows the steps alone.
    """

    def __init__(self) -> None:
        self._plain_s: float | None = None
        self._speculative_s: float | None = None
        self._num_requests = 1

    def observe(self, seconds: float, num_requests: int, *, is_speculative: bool) -> None:
        """The time from a step's end to the next one's start, waits for proposals left out."""
        if is_other_size(num_requests, self._num_requests):
            self._num_requests = num_requests
            self._plain_s = self._speculative_s = None
        if is_speculative:
            self._speculative_s = follow_mean(self._speculative_s, seconds)
        else:
            self._plain_s = follow_mean(self._plain_s, seconds)

    def relieve(self) -> None:
        """Speculation is tried again: rely a little less on what it took."""
        if self._plain_s is not None and self._speculative_s is not None:
            self._speculative_s = self._plain_s + _RELIEF * (self._speculative_s - self._plain_s)

    @property
    def extra_s(self) -> float:
        """Seconds that draft tokens add to a step; 0 until both kinds have been seen."""
        if self._plain_s is None or self._speculative_s is None:
            return 0.0
        return max(0.0, self._speculative_s - self._plain_s)


def follow_mean(mean_s: float | None, seconds: float) -> float:
    """The mean of times, of which long ones count little; None before the first."""
    if mean_s is None:
        return seconds
    gain = _GAIN if seconds > mean_s else _FAST_GAIN
    return mean_s + gain * (min(seconds, _OUTLIER * mean_s) - mean_s)
