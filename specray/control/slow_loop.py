"""The slow loop: from replicas' reports to ceilings and to the sizes of the pools."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specray.config import ObjectiveConfig
from specray.control.ceilings import depth_ceiling, fan_out_ceiling
from specray.control.draft_trial import DraftTrial
from specray.control.pool_model import ENOUGH, DraftCosts, draft_costs
from specray.control.pools import MOST_DRAFTS, Decision, wanted_drafts, wanted_targets
from specray.control.reports import DraftReport, TargetReport

_BY_HAND = "chosen by hand"
_HOPED_GAIN = 1.5  # of speculation without waits: what a fairly good draft brings


@dataclass(frozen=True, slots=True)
class ByHand:
    """What a person has chosen instead."""

    is_frozen: bool = False
    num_replicas: Mapping[str, int] = field(default_factory=dict)  # by deployment
    max_fan_out: int | None = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """All that has been decided at one time."""

    max_depth: Decision
    max_fan_out: Decision
    num_replicas: Mapping[str, Decision] = field(default_factory=dict)  # by deployment

    def all(self) -> tuple[Decision, ...]:
        """Pools first, by name."""
        pools = (self.num_replicas[name] for name in sorted(self.num_replicas))
        return *pools, self.max_depth, self.max_fan_out


class SlowLoop:
    """Decides from reports.

    What answers cost drafts, and how many are drafted ahead, is kept for the time when there are no
    drafts. Whether they would pay again can't be seen then: see `DraftTrial`.
    """

    def __init__(
        self,
        objective: ObjectiveConfig,
        draft_pool: str | None,
        max_depth: int,
        max_fan_out: int,
        most_drafts: int = MOST_DRAFTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the limits.

        Args:
            objective: what pools are sized for.
            draft_pool: the drafts' deployment; None where there is none.
            max_depth: that of the file.
            max_fan_out: the same; 0 where drafts do not draft ahead.
            most_drafts: replicas of them that there may be.
            clock: seconds.
        """
        self._most_drafts = most_drafts
        self._objective = objective
        self._draft_pool = draft_pool
        self._max_depth = max_depth
        self._max_fan_out = max_fan_out
        self._costs = DraftCosts()
        self._hit_rates: dict[str, float] = {}  # by deployment
        self._trial = DraftTrial(clock)
        start = "nothing has been decided yet"
        self._decided = Decisions(  # whatever is chosen by hand
            Decision("depth ceiling", max_depth, max_depth, start),
            Decision("fan-out ceiling", max_fan_out, max_fan_out, start),
        )
        self.decisions = self._decided
        self.held: Decisions | None = None  # what the loop has decided itself; None: nothing yet

    def adopt(self, held: Decisions) -> None:
        """Goes on from what another has decided, within this one's limits."""
        depth, fan_out = held.max_depth, held.max_fan_out
        self.held = self._decided = self.decisions = replace(
            held,
            max_depth=replace(depth, value=min(depth.value, self._max_depth)),
            max_fan_out=replace(fan_out, value=min(fan_out.value, self._max_fan_out)),
        )

    def decide(
        self,
        targets: Sequence[TargetReport],
        drafts: Sequence[DraftReport],
        by_hand: ByHand,
        max_wait_s: float = math.inf,
        *,
        is_enabled: bool = True,
    ) -> Decisions:
        """Decide anew; while it is frozen only what is chosen by hand changes.

        Args:
            targets: Latest reports of those that are there.
            drafts: The same.
            by_hand: What a person has chosen.
            max_wait_s: Longest that a step waits for proposals.
            is_enabled: Whether targets may speculate.
        """
        if not by_hand.is_frozen:
            self._decided = self._decide(targets, drafts, max_wait_s, is_enabled=is_enabled)
            self.held = self._decided
        num_now = Counter([t.deployment for t in targets] + [d.deployment for d in drafts])
        chosen = {
            pool: Decision(pool, number, num_now[pool], _BY_HAND)
            for pool, number in by_hand.num_replicas.items()
        }
        fan_out = self._decided.max_fan_out
        if by_hand.max_fan_out is not None:
            value = min(by_hand.max_fan_out, self._max_fan_out)
            fan_out = replace(fan_out, value=value, reason=_BY_HAND)
        self.decisions = replace(
            self._decided,
            max_fan_out=fan_out,
            num_replicas={**self._decided.num_replicas, **chosen},
        )
        return self.decisions

    def _decide(
        self,
        targets: Sequence[TargetReport],
        drafts: Sequence[DraftReport],
        max_wait_s: float,
        *,
        is_enabled: bool,
    ) -> Decisions:
        self._costs = draft_costs(drafts, self._costs)
        before = self._decided
        depth = depth_ceiling(targets, drafts, self._costs, before.max_depth.value, self._max_depth)
        fan_out = fan_out_ceiling(drafts, before.max_fan_out.value, self._max_fan_out)
        pools = self._pools(targets, drafts, max_wait_s, is_enabled=is_enabled)
        return Decisions(depth, fan_out, pools)

    def _pools(
        self,
        targets: Sequence[TargetReport],
        drafts: Sequence[DraftReport],
        max_wait_s: float,
        *,
        is_enabled: bool,
    ) -> dict[str, Decision]:
        """Only pools that can be told something of; Serve holds the others as they are."""
        targets = [self._recalled(target, has_drafts=bool(drafts)) for target in targets]
        by_pool = defaultdict(list)
        for target in targets:
            by_pool[target.deployment].append(target)
        pools = {
            name: wanted_targets(name, reports, self._objective)
            for name, reports in by_pool.items()
        }
        if self._draft_pool is None:
            return pools
        if targets:
            pools[self._draft_pool] = self._drafts(
                self._draft_pool, targets, len(drafts), max_wait_s, is_enabled=is_enabled
            )
        elif self._draft_pool in self._decided.num_replicas:  # targets are at 0: so are drafts
            pools[self._draft_pool] = self._without_targets(self._draft_pool, len(drafts))
        return pools

    def _drafts(
        self,
        pool: str,
        targets: Sequence[TargetReport],
        num_drafts: int,
        max_wait_s: float,
        *,
        is_enabled: bool,
    ) -> Decision:
        """As many as pay, or one on trial where only what was last seen of them speaks against."""

        def decision(targets: Sequence[TargetReport]) -> Decision:
            return wanted_drafts(
                *(pool, targets, num_drafts, self._costs),
                *(self._objective, self._most_drafts, max_wait_s),
            )

        wanted = decision(targets)
        may_help = is_enabled and decision([_hopeful(target) for target in targets]).value > 0
        self._trial.update(num_drafts, pays=wanted.value > 0, may_help=may_help)
        if self._trial.is_on:
            return replace(wanted, value=1, reason="on trial: whether speculation pays again")
        return wanted

    def _without_targets(self, pool: str, num_drafts: int) -> Decision:
        decided = self._decided.num_replicas[pool]
        if self._trial.is_on:
            self._trial.update(num_drafts, pays=False, may_help=False)
            return replace(decided, value=0, reason="no requests")
        return decided

    def _recalled(self, target: TargetReport, *, has_drafts: bool) -> TargetReport:
        """Without drafts: with the hit rate of the time when there were some to ask."""
        if has_drafts and target.asked_per_s >= ENOUGH:
            self._hit_rates[target.deployment] = target.hit_rate
        known = self._hit_rates.get(target.deployment)
        if has_drafts or known is None:
            return target
        return replace(target, hit_rate=known, asked_per_s=max(ENOUGH, target.asked_per_s))


def _hopeful(target: TargetReport) -> TargetReport:
    """The same, if speculation were as good as one may hope."""
    if target.gain_step_s <= 0:
        return target
    return replace(target, gain=max(target.gain, _HOPED_GAIN))
