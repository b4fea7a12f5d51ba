"""What a draft may bring, by the formulas of the field.

Block efficiency τ is tokens per verification (Leviathan et al., arXiv 2211.17192). The memory-bound
speed-up MBSU supposes that a model's time per token follows its size (Goel et al., arXiv
2403.00858); the token-rate ratio takes measured times instead. Both suppose that verifying a few
tokens takes as long as one, which holds where steps are bound by memory; `with_verification` takes
measured times of that, too. All suppose that the draft runs before each verification: one that
drafts ahead, or copies, costs less.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StepTimes(NamedTuple):
    """Seconds that have been measured, of one request alone."""

    target_token_s: float  # of a step without a draft
    verification_s: Sequence[float]  # of one that verifies 1, 2, ... draft tokens
    draft_token_s: float


class DepthFigures(NamedTuple):
    """What to expect of one depth."""

    depth: int
    block_efficiency: float
    mbsu: float
    token_rate_ratio: float | None  # None while no times have been measured
    with_verification: float | None  # the same, and verification takes what was measured

    @property
    def speedup(self) -> float:
        """The better founded of the two."""
        return self.mbsu if self.token_rate_ratio is None else self.token_rate_ratio


def block_efficiencies(rates: Sequence[float]) -> list[float]:
    """Tokens per verification at depths 0, 1, ...

    Args:
        rates: of each place, given that all before it were accepted.
    """
    efficiencies, survival = [1.0], 1.0
    for rate in rates:
        survival *= rate
        efficiencies.append(efficiencies[-1] + survival)
    return efficiencies


def depth_figures(
    rates: Sequence[float], size_ratio: float, times: StepTimes | None
) -> list[DepthFigures]:
    """What each depth from 1 on brings.

    Args:
        rates: acceptance by place in the chain; as many depths are looked at.
        size_ratio: parameters of the draft over those of the target.
        times: of both, if measured; of a verification at each of the depths.
    """
    figures = []
    for depth, efficiency in enumerate(block_efficiencies(rates)[1:], start=1):
        mbsu = efficiency / (depth * size_ratio + 1)
        ratios = (None, None) if times is None else _ratios(depth, efficiency, times)
        figures.append(DepthFigures(depth, efficiency, mbsu, *ratios))
    return figures


def _ratios(depth: int, efficiency: float, times: StepTimes) -> tuple[float, float]:
    """With verification that takes as long as a token, and as long as it does."""
    plain_s, draft_s = times.target_token_s, depth * times.draft_token_s
    verifications_s = plain_s, times.verification_s[depth - 1]
    free, measured = (efficiency * plain_s / (draft_s + seconds) for seconds in verifications_s)
    return free, measured


def recommended_depth(figures: Sequence[DepthFigures]) -> int:
    """The depth with the highest speed-up; 0 when none is faster than plain decoding."""
    best = max(figures, key=lambda figure: figure.speedup)
    return best.depth if best.speedup > 1 else 0
