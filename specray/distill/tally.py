"""Sums by key in bounded memory."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Worth = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]


class Sums(NamedTuple):
    """What was added up."""

    keys: NDArray[np.int64]  # [keys], ascending
    values: NDArray[np.float64]  # [keys]


class Tally:
    """Adds up weights by key; where there are too many keys, those of least worth are dropped.

    As in lossy counting (Manku and Motwani, 2002), a key that comes again begins at 0. So a sum is
    never too high, and short by at most `lost`, which is 0 as long as nothing was dropped.
    """

    def __init__(self, most: int, worth: Worth = lambda _, sums: sums) -> None:
        """Starts with nothing.

        Args:
            most: keys to hold; up to a quarter as many additions wait to be merged, besides.
            worth: of each key and its sum.
        """
        self.lost = 0.0  # in worth
        self._most = most
        self._worth = worth
        self._sums = Sums(np.zeros(0, np.int64), np.zeros(0))
        self._new: list[Sums] = []
        self._num_new = 0

    def add(self, keys: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Adds a weight to each key; a key may come more than once."""
        self._new.append(Sums(keys, weights))
        self._num_new += len(keys)
        if 4 * self._num_new >= self._most:
            self._merge()

    def read(self) -> Sums:
        """The sums so far."""
        self._merge()
        return self._sums

    def _merge(self) -> None:
        # In the order of the additions, so that the sums don't depend on when they are merged.
        parts = zip(self._sums, *self._new, strict=True)
        keys, weights = (np.concatenate(part) for part in parts)
        self._new, self._num_new = [], 0
        distinct, which = np.unique(keys, return_inverse=True)
        sums = np.bincount(which, weights, len(distinct))
        self._sums = Sums(distinct, sums.astype(np.float64, copy=False))
        if len(distinct) > self._most:
            self._drop()

    def _drop(self) -> None:
        worth = self._worth(*self._sums)
        kept = largest(worth, self._most)
        self.lost += float(np.delete(worth, kept).max())
        self._sums = Sums(self._sums.keys[kept], self._sums.values[kept])


def largest(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Indices of the largest values, ascending; of equal ones the first."""
    return np.sort(np.argsort(-values, kind="stable")[:most])
