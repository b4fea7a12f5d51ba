"""What a step with draft tokens takes beside its forward pass, beyond what every step takes."""

_GAIN = 0.05  # of each step
_OUTLIER = 3.0  # times the mean; a pause of that length had another reason


class Overhead:
    """Compares the time between steps, with draft tokens and without.

    Proposals have to be found, chosen and handed to the engine, and what was accepted of them has
    to be booked. The step-time model does not see it, as it knows the steps alone.
    """

    def __init__(self) -> None:
        self._plain_s: float | None = None
        self._speculative_s: float | None = None

    def observe(self, seconds: float, *, is_speculative: bool) -> None:
        """The time from a step's end to the next one's start, waits for proposals left out."""
        if is_speculative:
            self._speculative_s = _follow(self._speculative_s, seconds)
        else:
            self._plain_s = _follow(self._plain_s, seconds)

    @property
    def extra_s(self) -> float:
        """Seconds that draft tokens add to a step; 0 until both kinds have been seen."""
        if self._plain_s is None or self._speculative_s is None:
            return 0.0
        return max(0.0, self._speculative_s - self._plain_s)


def _follow(mean_s: float | None, seconds: float) -> float:
    if mean_s is None:
        return seconds
    return mean_s + _GAIN * (min(seconds, _OUTLIER * mean_s) - mean_s)
