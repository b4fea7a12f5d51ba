"""Endless loops: how a small model's greedy answers often end, with nothing to learn from."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MAX_PERIOD = 64
_ROUNDS = 3


def loop_start(token_ids: NDArray[np.int32]) -> int:
    """How many tokens there are up to the third round of an ending that only repeats itself.

    Returns:
        The length of the whole if it does not end in three rounds of at most 64 tokens.
    """
    length = len(token_ids)
    best = length
    longest = min(_MAX_PERIOD, length // _ROUNDS)
    # Where a period would be, the last token has been before: most periods end there.
    earlier = token_ids[length - 1 - longest : length - 1][::-1] if longest else token_ids[:0]
    for period in (np.flatnonzero(earlier == token_ids[-1:]) + 1).tolist():
        same = token_ids[period:] == token_ids[:-period]
        run = length - period if same.all() else int(np.argmin(same[::-1]))
        if run >= 2 * period:
            best = min(best, length - run + period)
    return best


def is_looping(token_ids: Tensor) -> Tensor:  # [rows, tokens] to [rows], bool
    """Which rows end in three rounds: those for which `loop_start` is not their length."""
    length = token_ids.shape[1]
    found = torch.zeros(len(token_ids), dtype=torch.bool, device=token_ids.device)
    for period in range(1, min(_MAX_PERIOD, length // _ROUNDS) + 1):
        rounds = token_ids[:, length - _ROUNDS * period :]
        found |= (rounds[:, period:] == rounds[:, :-period]).all(dim=1)
    return found
