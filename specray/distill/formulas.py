"""What acceptance means for speed: the formulas of the field."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Depth(NamedTuple):
    """What to expect at one depth."""

    depth: int
    tokens_per_step: float  # τ, the block efficiency
    speedup: float  # over decoding without a draft, at batch 1


def survival(accepted: NDArray[np.float64], depth: int) -> NDArray[np.float64]:  # [depth]
    """The chance that a chain from any position of a text survives to each length.

    Args:
        accepted: [tokens], the probability to accept the draft's proposal at each position of an
            answer of the target's. For greedy text 1 where draft and target agree. For text that
            was sampled from p, min(1, q(x) / p(x)) of the token x that stands there: the mean over
            texts of its products is exactly the chance that sampled chains survive.
        depth: longest chain.
    """
    chances = []
    chain = np.ones(len(accepted))
    for length in range(1, depth + 1):
        chain = chain[: len(accepted) - length + 1] * accepted[length - 1 :]
        chances.append(chain.mean() if len(chain) else 0.0)
    return np.array(chances)


def expected_speeds(chances: Sequence[float], cost_ratio: float) -> list[Depth]:
    """Speed by depth, where verifying a chain takes as long as decoding one token.

    Args:
        chances: survival by length.
        cost_ratio: time of a draft's step over that of the target's. Speedup is τ / (1 + depth ×
            cost ratio), Chen et al. arXiv 2302.01318; with sizes for times it is MBSU.
    """
    speeds = []
    for depth in range(1, len(chances) + 1):
        tokens = 1 + float(sum(chances[:depth]))
        speeds.append(Depth(depth, tokens, tokens / (1 + depth * cost_ratio)))
    return speeds


def best_depth(speeds: Sequence[Depth]) -> Depth:
    """The depth of the largest speedup; 0 if none is above 1."""
    best = max(speeds, key=lambda speed: speed.speedup)
    return best if best.speedup > 1 else Depth(0, 1.0, 1.0)
