"""What so many drafts would bring: the model behind the size of the draft pool.

A target's step takes T seconds. Speculation whose proposals are always there would raise goodput by
the factor p (`Prospect`, from the fast loop's own plans). A share m of commits has to wait for its
answer, which takes a seconds, so that

    gain(n) = max(1, p * T / (T + m * a(n))),    a(n) = relay + batch(n) / (1 - u(n))

where batch(n) is what the fullest draft needs for its share of a target's requests, fixed part and
part for each, and u(n) the share of time that it works for other targets. Without drafts the gain
is 1. A draft's marginal goodput is gain(n + 1) - gain(n), in units of what a target does without
speculation; what it costs is in the same unit, so both can be compared. No step waits for longer
than `max_wait_ms`: where answers take longer, what is drafted ahead is all the gain.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from specray.control.reports import DraftReport, TargetReport

ENOUGH = 2.0  # proposals asked for per second; below, what came of them says little
_FULLEST = 0.9  # utilisation that a queue's length is predicted for at most


class DraftCosts(NamedTuple):
    """What answers cost a draft."""

    fixed_s: float = 0.0  # a batch of them, whatever its size
    each_s: float = 0.0

    def batch_s(self, size: float) -> float:
        """A batch of so many answers; at least one."""
        return self.fixed_s + self.each_s * max(1.0, size)


def draft_costs(drafts: Sequence[DraftReport], before: DraftCosts) -> DraftCosts:
    """The pool's mean, by what each has answered; what was known before if nobody has."""
    rates = [draft.answers_per_s for draft in drafts]
    total = sum(rates)
    if total <= 0:
        return before
    return DraftCosts(
        sum(d.answer_fixed_s * rate for d, rate in zip(drafts, rates, strict=True)) / total,
        sum(d.answer_each_s * rate for d, rate in zip(drafts, rates, strict=True)) / total,
    )


def waited_share(target: TargetReport) -> float:
    """The share of commits whose proposal is not drafted ahead; 1 until it is known."""
    return 1.0 - target.hit_rate if target.asked_per_s >= ENOUGH else 1.0


def mean(values: Sequence[float]) -> float:
    """Of a report's figures over a pool; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def gains(
    targets: Sequence[TargetReport],
    costs: DraftCosts,
    num_drafts: int,
    max_wait_s: float = math.inf,
) -> tuple[float, ...]:
    """The factor by which speculation raises each target's goodput, with so many drafts."""
    if num_drafts == 0:
        return (1.0,) * len(targets)
    asks = [target.num_running > 0 and target.gain > 1.0 for target in targets]
    num_busy = sum(asks)
    batches_s = [
        costs.batch_s(_largest_batch(target.num_running, num_drafts, num_busy))
        for target in targets
    ]
    busy = [
        batch_s / (target.gain_step_s + batch_s) if is_asking and batch_s else 0.0
        for target, batch_s, is_asking in zip(targets, batches_s, asks, strict=True)
    ]
    factors = []
    for target, batch_s, own in zip(targets, batches_s, busy, strict=True):
        answer_s = target.relay_s + batch_s / (1 - min(_FULLEST, sum(busy) - own))
        factors.append(_gain(target, answer_s, max_wait_s))
    return tuple(factors)


def _largest_batch(num_requests: float, num_drafts: int, num_targets: int) -> float:
    """A step waits for the slowest draft: the one with the most of the target's requests.

    Routers give drafts as many sessions each, but those of several targets are mixed.
    """
    mean = num_requests / num_drafts
    spread = math.sqrt(mean * (1 - 1 / num_targets)) if num_targets > 1 else 0.0
    return min(num_requests, mean + spread)


def _gain(target: TargetReport, answer_s: float, max_wait_s: float) -> float:
    """Weighed by the share of time in which the target has requests at all."""
    if target.gain <= 1.0:
        return 1.0
    step_s, waited = target.gain_step_s, waited_share(target)
    gain = 1.0 + (1.0 - waited) * (target.gain - 1.0)  # nobody waits
    if answer_s <= max_wait_s:  # then the fast loop does what pays more
        gain = max(gain, target.gain * step_s / (step_s + waited * answer_s))
    return 1.0 + min(1.0, target.num_running) * (max(1.0, gain) - 1.0)
