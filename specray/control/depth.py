"""How many draft tokens each request verifies in a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that could verify draft tokens in the step that is being planned."""

    acceptance_rate: float  # that the next token of its chain is accepted, in [0, 1]
    max_depth: int  # most tokens it could verify


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """Depths that maximise goodput, and the goodput they promise."""

    depths: tuple[int, ...]  # one per candidate
    num_expected: float  # tokens committed by the step, over the whole batch
    step_s: float

    @property
    def goodput(self) -> float:
        """Committed tokens per second of the whole batch (SmartSpec, arXiv 2406.14066)."""
        return self.num_expected / self.step_s if self.step_s > 0 else 0.0


def plan_depths(
    candidates: Sequence[Candidate],
    num_plain: int,
    step_time: Callable[[Numbers], Numbers],
    wait_s: float = 0.0,
) -> DepthPlan:
    """Choose the depths that maximise expected commits per second.

    A token's survival is the product of the rates before it, so it falls along each chain, and
    taking tokens in order of survival never takes a token before its predecessor. The best choice
    of any number of tokens is therefore the first ones in that order, and the best of these is
    the optimum, whatever the law of the step time (tests compare brute force).

    Args:
        candidates: The requests that may speculate. Each also gets one token for sure.
        num_plain: Further requests in the step, each with one token.
        step_time: Seconds of steps by their numbers of tokens.
        wait_s: Time lost before the step begins, waiting for these candidates' proposals.
    """
    rows, survivals = _chains(candidates)
    order = np.argsort(-survivals)
    num_sure = num_plain + len(candidates)
    num_tokens = np.arange(num_sure, num_sure + len(order) + 1, dtype=np.float64)
    expected = num_sure + np.concatenate(([0.0], np.cumsum(survivals[order])))
    step_s = step_time(num_tokens) + wait_s
    num_taken = int(np.argmax(expected / step_s)) if step_s[0] > 0 else 0
    depths = np.bincount(rows[order[:num_taken]], minlength=len(candidates))
    return DepthPlan(tuple(depths.tolist()), float(expected[num_taken]), float(step_s[num_taken]))


def _chains(candidates: Sequence[Candidate]) -> tuple[NDArray[np.intp], Numbers]:
    """Each token's candidate and survival, chain by chain."""
    max_depths = np.array([candidate.max_depth for candidate in candidates], np.intp)
    rates = np.array([candidate.acceptance_rate for candidate in candidates], np.float64)
    rows = np.repeat(np.arange(len(candidates)), max_depths)
    ends = np.cumsum(max_depths)
    places = np.arange(1, len(rows) + 1) - np.repeat(ends - max_depths, max_depths)
    return rows, rates[rows] ** places
