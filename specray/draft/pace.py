"""How much to draft ahead at once, and when to stop for a commit that is due."""

_GROWTH, _SHRINKAGE = 1.04, 0.88  # of the rows: so that about one continuation in four is late


class Pace:
    """The most rows of a pass, by multiplicative increase and decrease.

    More rows cover more outcomes but make each pass slower, and a continuation takes as many passes
    as it has tokens: those of which little is there when their outcome comes are worth little. What
    was there tells how many rows fit, whatever else the draft does meanwhile.
    """

    def __init__(self, most: int) -> None:
        """Takes the most rows that there may ever be; begins there."""
        self._most = self._rows = float(most)

    @property
    def most_rows(self) -> int:
        """Of a pass; at least 1."""
        return int(self._rows)

    def observe(self, *, is_in_time: bool) -> None:
        """Learns from an outcome that has come and had been drafted for."""
        factor = _GROWTH if is_in_time else _SHRINKAGE
        self._rows = min(max(1.0, factor * self._rows), self._most)


_FLIGHT_GAIN, _EARLY = 0.05, 0.25  # of each flight, and how many of them are shorter than expected
_PASS_GAIN = 0.2  # of each pass
_PASS_DOUBT = 0.98  # of a pass's time, kept at each flight: passes may be shorter by now


class Rhythm:
    """When a commit is to be expected, and whether a pass that is begun now would be in its way."""

    def __init__(self) -> None:
        self._flight_s = 0.0  # most last longer
        self._pass_s = 0.0

    def observe_flight(self, seconds: float) -> None:
        """Learns how long a proposal was verified for, from its answer to its commit."""
        if not self._flight_s:
            self._flight_s = seconds
        share = _EARLY if seconds > self._flight_s else _EARLY - 1
        self._flight_s *= 1 + _FLIGHT_GAIN * share / _EARLY
        self._pass_s *= _PASS_DOUBT  # or passes that once took too long would never be tried again

    def observe_pass(self, seconds: float) -> None:
        """Learns how long a pass takes."""
        self._pass_s += (_PASS_GAIN if self._pass_s else 1.0) * (seconds - self._pass_s)

    def is_due(self, elapsed_s: float) -> bool:
        """Whether a commit is to be expected before a pass would be over.

        Args:
            elapsed_s: since its proposal was answered.
        """
        return elapsed_s + self._pass_s > self._flight_s > 0
