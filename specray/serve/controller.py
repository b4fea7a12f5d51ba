"""The controller deployment: who is there, the policy, and what the slow loop decides."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from typing import Any

from specray.config import LivePolicyConfig, SpeculationConfig
from specray.control.pools import MOST_DRAFTS, Decision
from specray.control.reports import DraftReport, Report, TargetReport
from specray.control.slow_loop import ByHand, Decisions, SlowLoop
from specray.serve.logs import join_serve
from specray.serve.membership import Member, Registry, View
from specray.serve.metrics import ControllerMetrics
from specray.serve.scaling import wish
from specray.serve.user_config import UserConfig, check_by_hand
from specray.types import SpeculationPolicy

logger = logging.getLogger(__name__)

_PERIOD_S = 2.0
_MOST_REMEMBERED = 50  # changes


class Controller:
    """One replica. Holds nothing that heartbeats do not bring back within seconds."""

    def __init__(
        self,
        speculation: SpeculationConfig,
        pools: Collection[str],
        max_fan_out: int = 0,
        draft_pool: str | None = None,
        most_drafts: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the limits.

        Args:
            speculation: the file's.
            pools: deployments whose replicas may be chosen by hand.
            max_fan_out: of the drafts; 0 if they do not draft ahead.
            draft_pool: their deployment; None if there is none.
            most_drafts: replicas of it that there may be; None if that is not known.
            clock: seconds.
        """
        join_serve()
        self._user_config = UserConfig("controller")
        self._pools = pools
        self._start_policy = self._policy = speculation.policy
        self._objective = speculation.objective
        self._by_hand = ByHand()
        self._clock = clock
        self._registry = Registry(clock)
        self._loop = SlowLoop(
            *(speculation.objective, draft_pool, speculation.max_depth, max_fan_out),
            MOST_DRAFTS if most_drafts is None else most_drafts,
            clock,
        )
        self._decided_at: float | None = None
        self._changes: deque[tuple[float, Decision]] = deque(maxlen=_MOST_REMEMBERED)
        self._metrics = ControllerMetrics()

    def reconfigure(
        self,
        user_config: dict[str, Any] | None,
        rank: object = None,  # noqa: ARG002  # Serve passes None on only to those who take one
    ) -> None:
        """Take over the live policy from `user_config`, without a restart of anything.

        Args:
            user_config: None where the file has none, or an empty one.
            rank: of this replica.

        Raises:
            InvalidConfigError: naming the field; once anybody has been heard of, a faulty one is
                logged, and the policy before it holds.
        """
        with self._user_config:
            live = LivePolicyConfig.model_validate(user_config or {})
            check_by_hand(live.num_replicas, self._pools)
            self._policy = live.apply(self._start_policy)
            self._by_hand = ByHand(live.is_frozen, live.num_replicas, live.max_fan_out)

    async def heartbeat(
        self, member: Member, report: Report | None = None, held: Decisions | None = None
    ) -> View:
        """Note that a replica is alive, and what it reports; answer with everything known.

        Args:
            member: who is alive.
            report: what it reports.
            held: the last decisions that it has heard of. One that replaces a frozen controller
                goes on holding them.
        """
        self._user_config.in_use()
        self._registry.hear(member, report)
        if held is not None and self._by_hand.is_frozen and self._loop.held is None:
            self._loop.adopt(held)
            self._loop.decide((), (), self._by_hand)  # what is chosen by hand comes first
        self._decide_if_due()
        return await self.view()

    async def leave(self, member: Member) -> None:
        """Forget a replica that is going away."""
        self._registry.forget(member)

    async def view(self) -> View:
        """All live replicas, the policy, and what limits it."""
        return View(
            self._registry.addresses("target"),
            self._registry.addresses("draft"),
            self._limited_policy(),
            self._registry.is_complete,
            self._registry.addresses("router"),
            self._max_fan_out(),
            self._loop.held,
        )

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For Serve's autoscaler: see `specray.serve.scaling`. Empty until it has decided."""
        return {
            wish(pool): float(decision.value)
            for pool, decision in self._loop.decisions.num_replicas.items()
        }

    async def explain(self) -> dict[str, Any]:
        """What is known and what has been decided, in JSON's types."""
        reports = self._registry.reports()
        now = self._clock()
        return {
            "is_complete": self._registry.is_complete,
            "policy": asdict(self._limited_policy()),
            "objective": self._objective.model_dump(),
            "is_frozen": self._by_hand.is_frozen,
            "members": [
                {"role": member.role, "address": member.address, "report": asdict(report)}
                for member, report in sorted(reports.items(), key=lambda item: item[0].address)
            ],
            "decisions": [asdict(decision) for decision in self._loop.decisions.all()],
            "changes": [{"age_s": now - at} | asdict(change) for at, change in self._changes],
        }

    def _decide_if_due(self) -> None:
        now = self._clock()
        is_due = self._decided_at is None or now - self._decided_at >= _PERIOD_S
        if not (is_due and self._registry.is_complete):
            return
        self._decided_at = now
        reports = self._registry.reports().values()
        before = {decision.subject: decision.value for decision in self._loop.decisions.all()}
        decisions = self._loop.decide(
            [report for report in reports if isinstance(report, TargetReport)],
            [report for report in reports if isinstance(report, DraftReport)],
            self._by_hand,
            self._policy.max_wait_ms / 1e3,
            is_enabled=self._policy.is_enabled,
        )
        self._metrics.publish(decisions)
        for decision in decisions.all():
            if decision.value != before.get(decision.subject, decision.before):
                self._note(now, decision)

    def _note(self, now: float, decision: Decision) -> None:
        self._changes.append((now, decision))
        self._metrics.count(decision)
        inputs = ", ".join(f"{name} {value:.4g}" for name, value in decision.inputs)
        logger.info(
            *("decided: %s %d, was %d: %s (%s)", decision.subject, decision.value),
            *(decision.before, decision.reason, inputs),
        )

    def _limited_policy(self) -> SpeculationPolicy:
        if not self._objective.is_limiting:
            return self._policy
        ceiling = self._loop.decisions.max_depth.value
        return replace(self._policy, max_depth=min(self._policy.max_depth, ceiling))

    def _max_fan_out(self) -> int | None:
        if self._by_hand.max_fan_out is None and self._objective.is_limiting:
            return self._loop.decisions.max_fan_out.value
        return self._by_hand.max_fan_out
