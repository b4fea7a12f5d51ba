"""Rules that choose depths: ours, and the field's simpler ones for comparison."""

from typing import Protocol

from specray.control.acceptance import AcceptanceRate
from specray.control.depth import Batch, Chains, DepthPlan, plan_depths, uniform_plan
from specray.control.roofline import StepTime
from specray.types import (
    AcceptanceRule,
    BatchSizeRule,
    DepthRule,
    FixedRule,
    GoodputRule,
    QpsRule,
)


class DepthPolicy(Protocol):
    """Chooses the depths of a step; called for each step, by one thread."""

    @property
    def weighs_costs(self) -> bool:
        """Whether it gives up, waits and probes by what that costs.

        Else each depth that it names is asked for, and waited for.
        """

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """The depths of a step, each within its chain, all within the batch's budgets.

        It may look at the survival of a token only to decide on that token and those that survive
        less: see `plan_depths` for what depends on that.
        """

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from one request's verification."""


class Goodput:
    """Expected commits per predicted second, token by token, with the batch's prudence."""

    weighs_costs = True

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """See `plan_depths`."""
        return plan_depths(chains, batch, step_time)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Nothing: the chains' survivals say it all."""


class Fixed:
    """One depth, whatever happens."""

    weighs_costs = False

    def __init__(self, rule: FixedRule) -> None:
        self._depth = rule.depth

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """The configured depth for all."""
        return uniform_plan(self._depth, chains, batch, step_time)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Nothing."""


class ByBatchSize:
    """vLLM's table."""

    weighs_costs = False

    def __init__(self, rule: BatchSizeRule) -> None:
        self._table = rule.table

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """The depth of the entry that holds the number of requests, or 0."""
        size = batch.num_requests
        depth = next((d for first, last, d in self._table if first <= size <= last), 0)
        return uniform_plan(depth, chains, batch, step_time)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Nothing."""


_FORGETTING = 0.99  # per verified token
_PRIOR_RATE = 0.6


class ByQps:
    """A formula of load and acceptance."""

    weighs_costs = False

    def __init__(self, rule: QpsRule) -> None:
        self._rule = rule
        self._acceptance = AcceptanceRate(_FORGETTING)

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """The formula's depth, rounded, for all."""
        rule = self._rule
        rate = self._acceptance.rate(_PRIOR_RATE)
        base = min(rule.base_depth, rate / (1 - rate))
        utilisation = min(1.0, batch.arrivals_per_s / rule.capacity_qps)
        depth = max(rule.min_depth, round(base * (1 - utilisation * rule.adjustment)))
        return uniform_plan(depth, chains, batch, step_time)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn the acceptance rate."""
        self._acceptance.observe(num_proposed, num_accepted)


class ByAcceptance:
    """Up and down by two thresholds."""

    weighs_costs = False

    def __init__(self, rule: AcceptanceRule) -> None:
        self._rule = rule
        self._depth = rule.start_depth
        self._num_proposed = self._num_accepted = 0

    def plan(self, chains: Chains, batch: Batch, step_time: StepTime) -> DepthPlan:
        """The depth that the thresholds have led to, for all."""
        return uniform_plan(self._depth, chains, batch, step_time)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Move by one, at most once per window of verified tokens."""
        self._num_proposed += num_proposed
        self._num_accepted += num_accepted
        rule = self._rule
        if self._num_proposed < rule.window:
            return
        rate = self._num_accepted / self._num_proposed
        self._num_proposed = self._num_accepted = 0
        if rate < rule.lower:
            self._depth = max(rule.min_depth, self._depth - 1)
        elif rate > rule.upper:
            self._depth = min(rule.max_depth, self._depth + 1)


def make_policy(rule: DepthRule) -> DepthPolicy:
    """The policy that follows a rule."""
    match rule:
        case GoodputRule():
            return Goodput()
        case FixedRule():
            return Fixed(rule)
        case BatchSizeRule():
            return ByBatchSize(rule)
        case QpsRule():
            return ByQps(rule)
        case AcceptanceRule():
            return ByAcceptance(rule)
