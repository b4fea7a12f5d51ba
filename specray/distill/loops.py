"""Endless loops: how a small model's greedy answers often end, with nothing to learn from."""

import numpy as np
from numpy.typing import NDArray

_MAX_PERIOD = 64


def loop_start(token_ids: NDArray[np.int32]) -> int:
    """How many tokens there are up to the third round of an ending that only repeats itself.

    Returns:
        The length of the whole if it does not end in three rounds of at most 64 tokens.
    """
    length = len(token_ids)
    best = length
    for period in range(1, min(_MAX_PERIOD, length // 3) + 1):
        same = token_ids[period:] == token_ids[:-period]
        run = length - period if same.all() else int(np.argmin(same[::-1]))
        if run >= 2 * period:
            best = min(best, length - run + period)
    return best
