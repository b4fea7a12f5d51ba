"""How many draft tokens each request verifies in a step."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


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
    step_time: Callable[[int], float],
    wait_s: float = 0.0,
) -> DepthPlan:
    """Choose the depths that maximise expected commits per second.

    A token's survival is the product of the rates before it, so it falls along each chain, and
    taking tokens in order of survival never takes a token before its predecessor. With a step
    time that is linear in tokens, goodput rises and then falls along that order, so the first
    token that does not raise it ends the search at the optimum (tests compare brute force).

    Args:
        candidates: The requests that may speculate. Each also gets one token for sure.
        num_plain: Further requests in the step, each with one token.
        step_time: Seconds of a step by its number of tokens.
        wait_s: Time lost before the step begins, waiting for these candidates' proposals.
    """
    num_tokens = num_plain + len(candidates)
    expected = float(num_tokens)
    step_s = step_time(num_tokens) + wait_s
    depths = [0] * len(candidates)
    heap = [(-c.acceptance_rate, i) for i, c in enumerate(candidates) if c.max_depth > 0]
    heapq.heapify(heap)
    while heap:
        negative_survival, i = heap[0]
        longer_s = step_time(num_tokens + 1) + wait_s
        if (expected - negative_survival) * step_s <= expected * longer_s:
            break
        num_tokens, expected, step_s = num_tokens + 1, expected - negative_survival, longer_s
        depths[i] += 1
        if depths[i] < candidates[i].max_depth:
            heapq.heapreplace(heap, (negative_survival * candidates[i].acceptance_rate, i))
        else:
            heapq.heappop(heap)
    return DepthPlan(tuple(depths), expected, step_s)
