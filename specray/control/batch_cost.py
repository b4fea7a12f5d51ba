"""What a batch costs by its size, learnt from batches."""

import math

_MEMORY = 0.998  # of what is known, at each batch, unless told otherwise: some 500 count
_DOUBT = 2.0  # weight of the belief that half of a usual batch's time does not grow with its size
_SPLIT = 4.0  # times the fixed part that a batch should take, for its splitting to cost little


class BatchCost:
    """A line through batches' sizes and seconds, by least squares that slowly forget.

    Sizes that hardly vary say nothing about the slope: it is then near the prior belief.
    """

    def __init__(self, memory: float = _MEMORY) -> None:
        """Knows nothing yet; keeps so much of what it knows at each batch."""
        self._memory = memory
        self._weight = 0.0
        self._size = self._seconds = 0.0  # means
        self._spread = self._joint = 0.0  # sums of squares about the means

    def observe(self, size: int, seconds: float) -> None:
        """Learn from a finished batch."""
        kept = self._memory * self._weight
        self._weight = kept + 1.0
        deviation, delay = size - self._size, seconds - self._seconds
        part = kept / self._weight
        self._spread = self._memory * self._spread + part * deviation**2
        self._joint = self._memory * self._joint + part * deviation * delay
        self._size += deviation / self._weight
        self._seconds += delay / self._weight

    def forget(self) -> None:
        """Nothing is known any more."""
        self._weight = self._size = self._seconds = self._spread = self._joint = 0.0

    def fade(self) -> None:
        """All that was learnt holds, but counts for no more than the next batch will."""
        self._weight = min(self._weight, 1.0)

    @property
    def mean_s(self) -> float:
        """Seconds of the batches that were seen, on average; 0 before the first."""
        return self._seconds

    @property
    def per_item_s(self) -> float:
        """Seconds that one more item takes."""
        if not self._weight:
            return 0.0
        doubt = _DOUBT * self._size**2
        believed = 0.5 * self._seconds / self._size
        slope = (self._joint + doubt * believed) / (self._spread + doubt)
        return min(max(0.0, slope), self._seconds / self._size)

    @property
    def fixed_s(self) -> float:
        """Seconds that any batch takes."""
        return self._seconds - self.per_item_s * self._size

    def expected_s(self, size: int) -> float:
        """Seconds that a batch of a size takes; 0 before anything is known."""
        return self.fixed_s + size * self.per_item_s

    @property
    def divisible_size(self) -> int:
        """Batches of this size cost little more than larger ones, item by item; at least 1."""
        if not self._weight or self.per_item_s * 1e6 <= self.fixed_s:
            return 1_000_000
        return max(1, math.ceil(_SPLIT * self.fixed_s / self.per_item_s))
