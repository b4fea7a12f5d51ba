"""How much to draft ahead at once, so that it is done in time."""

_GROWTH = 0.25  # rows, after continuations that were done when their outcome came
_SHRINKAGE = 0.9  # of the rows, after some that were not: one in ten or so may be late


class Pace:
    """The most rows of a pass, by additive increase and multiplicative decrease.

    More rows cover more outcomes but make each pass slower, and a continuation takes as many passes
    as it has tokens: those that are not done when the outcome comes are worth little. What is done
    in time tells how many rows fit, whatever else the draft does meanwhile.
    """

    def __init__(self, most: int) -> None:
        """Takes the most rows that there may ever be; begins there."""
        self._most = self._rows = float(most)

    @property
    def most_rows(self) -> int:
        """Of a pass; at least 1."""
        return int(self._rows)

    def observe(self, *, is_in_time: bool) -> None:
        """Learns from an outcome that has come, for which continuations had been begun."""
        grown = self._rows + _GROWTH if is_in_time else self._rows * _SHRINKAGE
        self._rows = min(max(1.0, grown), self._most)
