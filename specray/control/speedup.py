"""What a draft may bring, by the formulas of the field.

Block efficiency τ is tokens per verification (Leviathan et al., arXiv 2211.17192). The memory-bound
speed-up MBSU supposes that a model's time per token follows its size (Goel et al., arXiv
2403.00858); the token-rate ratio takes measured times instead. Both suppose that the draft runs
before each verification: one that drafts ahead, or copies, costs less.
"""

from collections.abc import Sequence
from typing import NamedTuple


class DepthFigures(NamedTuple):
    """What to expect of one depth."""

    depth: int
    block_efficiency: float
    mbsu: float
    token_rate_ratio: float | None  # None while no times have been measured

    @property
    def speedup(self) -> float:
        """The better founded of the two."""
        return self.mbsu if self.token_rate_ratio is None else self.token_rate_ratio


def block_efficiency(acceptance_rate: float, depth: int) -> float:
    """Tokens per verification when each draft token is accepted with the same probability."""
    if acceptance_rate == 1.0:
        return depth + 1.0
    return (1 - acceptance_rate ** (depth + 1)) / (1 - acceptance_rate)


def block_efficiencies(rates: Sequence[float]) -> list[float]:
    """The same for depths 0, 1, ... when the acceptance depends on the place in the chain.

    Args:
        rates: of each place, given that all before it were accepted.
    """
    efficiencies, survival = [1.0], 1.0
    for rate in rates:
        survival *= rate
        efficiencies.append(efficiencies[-1] + survival)
    return efficiencies


def depth_figures(
    rates: Sequence[float], size_ratio: float, time_ratio: float | None
) -> list[DepthFigures]:
    """What each depth from 1 on brings.

    Args:
        rates: acceptance by place in the chain; as many depths are looked at.
        size_ratio: parameters of the draft over those of the target.
        time_ratio: seconds per token of the draft over those of the target, if measured.
    """
    figures = []
    for depth, efficiency in enumerate(block_efficiencies(rates)):
        ratio = None if time_ratio is None else efficiency / (depth * time_ratio + 1)
        mbsu = efficiency / (depth * size_ratio + 1)
        figures.append(DepthFigures(depth, efficiency, mbsu, ratio))
    return figures[1:]


def recommended_depth(figures: Sequence[DepthFigures]) -> int:
    """The depth with the highest speed-up; 0 when none is faster than plain decoding."""
    best = max(figures, key=lambda figure: figure.speedup)
    return best.depth if best.speedup > 1 else 0
