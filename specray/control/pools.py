"""How many replicas each pool should have, and why. Bounds and cool-downs are Ray Serve's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specray.config import ObjectiveConfig
from specray.control.pool_model import DraftCosts, gains, mean, waited_share
from specray.control.reports import TargetReport

_TO_ADD, _TO_KEEP = 1.25, 0.6  # times its cost that a draft must bring
_MARGIN = 0.02  # of the best goodput, that fewer drafts may lack where their cost does not count
_FULL = {"throughput": 0.8, "slo": 0.8, "latency": 0.5}  # share of places that may be taken
_KV_FULL = 0.85
MOST_DRAFTS = 16  # that are thought of, unless Serve's bound is known
_SPARE = 0.8  # of the remaining replicas' room, which one goes only below
_MOST_AT_ONCE = 2.0  # times as many replicas in one decision


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, what it was before, and what it follows from."""

    subject: str
    value: int
    before: int
    reason: str
    inputs: tuple[tuple[str, float], ...] = ()


def wanted_drafts(
    pool: str,
    targets: Sequence[TargetReport],
    num_drafts: int,
    costs: DraftCosts,
    objective: ObjectiveConfig,
    most: int = MOST_DRAFTS,
    max_wait_s: float = math.inf,
) -> Decision:
    """Drafts by demand for speculation: what one more brings the targets, against what it costs.

    Args:
        pool: its deployment.
        targets: of all target pools; they share the drafts.
        num_drafts: those that are there.
        costs: what answers cost them.
        objective: what the pool is sized for.
        most: as many as there may be; where a few bring nothing more of them may.
        max_wait_s: longest that a step waits for proposals.
    """
    choices = range(max(most, num_drafts + 1) + 1)
    factors = [gains(targets, costs, n, max_wait_s) for n in choices]
    goodputs = [sum(each) for each in factors]
    allowed = max(most, num_drafts) + 1  # a further one is only told of, in the reason
    if objective.tpot_ms is not None:
        limit_s = objective.tpot_ms / 1e3
        wanted = _least_in_time(targets, factors[:allowed], num_drafts, limit_s)
    elif objective.goal == "latency":
        wanted = _as_good_as_more(goodputs[:allowed], num_drafts)
    else:  # drafts play no part in the time to the first token
        wanted = _cheapest(goodputs[:allowed], num_drafts, objective.draft_cost)
    inputs = (
        *_demand(targets, costs, num_drafts),
        ("goodput_now", goodputs[num_drafts]),
        ("goodput_one_more", goodputs[num_drafts + 1]),
        ("goodput_wanted", goodputs[wanted]),
        ("draft_cost", objective.draft_cost),
    )
    reason = _reason_of_drafts(targets, goodputs, num_drafts, wanted)
    return Decision(pool, wanted, num_drafts, reason, inputs)


def _demand(
    targets: Sequence[TargetReport], costs: DraftCosts, num_drafts: int
) -> tuple[tuple[str, float], ...]:
    requests = [target.num_running for target in targets]
    return (
        ("targets", float(len(targets))),
        ("requests", sum(requests)),
        ("gain_if_instant", mean([t.gain for t in targets if t.gain])),
        ("waited_share", mean([waited_share(t) for t in targets])),
        ("late_or_missed", mean([t.late_rate + t.miss_rate for t in targets])),
        ("wait_share", mean([t.wait_share for t in targets])),
        ("answer_s", costs.batch_s(mean(requests) / max(1, num_drafts))),
    )


def _cheapest(goodputs: Sequence[float], now: int, draft_cost: float) -> int:
    """Where goodput less cost is largest; near indifference, what is there stays."""

    def best(sizes: Sequence[int], cost: float) -> int:
        return max(sizes, key=lambda n: goodputs[n] - cost * n)  # the first of equal ones

    up = best(range(now, len(goodputs)), _TO_ADD * draft_cost)
    return up if up > now else best(range(now + 1), _TO_KEEP * draft_cost)


def _as_good_as_more(goodputs: Sequence[float], now: int) -> int:
    """The fewest that bring nearly as much as any number would."""
    shares = [goodput / max(goodputs) for goodput in goodputs]
    up = next(n for n, share in enumerate(shares) if share >= 1 - _MARGIN)
    down = next(n for n, share in enumerate(shares) if share >= 1 - _MARGIN / 2)
    return max(up, min(now, down))


def _least_in_time(
    targets: Sequence[TargetReport],
    factors: Sequence[Sequence[float]],
    now: int,
    limit_s: float,
) -> int:
    """The fewest with which tokens come in time; where none do, those that bring the most."""

    def slowest_s(num_drafts: int) -> float:
        pairs = zip(targets, factors[now], factors[num_drafts], strict=True)
        return max(((t.tpot_s or 0.0) * before / then for t, before, then in pairs), default=0.0)

    sizes = range(len(factors))
    up = next((n for n in sizes if slowest_s(n) <= limit_s), None)
    if up is None:
        return _as_good_as_more([sum(each) for each in factors], now)
    down = next((n for n in sizes if slowest_s(n) <= _SPARE * limit_s), up)
    return max(up, min(now, down))


def _reason_of_drafts(
    targets: Sequence[TargetReport], goodputs: Sequence[float], now: int, wanted: int
) -> str:
    if not any(target.num_running or target.num_waiting for target in targets):
        return "no requests"
    if wanted == 0:
        most = max(goodputs) / goodputs[0] - 1
        return f"drafts would bring {most:+.0%} goodput at this load: too little to keep one"
    if wanted > now:
        return f"{wanted} bring {goodputs[wanted] / goodputs[now] - 1:+.0%} goodput over {now}"
    if wanted < now:
        lost = 1 - goodputs[wanted] / goodputs[now]
        return f"{now - wanted} less cost {lost:.0%} goodput, and are cheaper"
    more = goodputs[now + 1] / goodputs[now] - 1
    return f"enough: one more would bring {more:+.1%} goodput"


def wanted_targets(
    pool: str, reports: Sequence[TargetReport], objective: ObjectiveConfig
) -> Decision:
    """Targets by queue, KV cache and latency. Draft tokens play no part: depth gives way to load.

    Args:
        pool: their deployment.
        reports: of its replicas, at least one.
        objective: what it is sized for.
    """
    now = len(reports)
    running = sum(report.num_running for report in reports)
    waiting = sum(report.num_waiting for report in reports)
    places = sum(report.max_running for report in reports)
    pressures = {
        "places": (running + waiting) / max(1, places) / _FULL[objective.goal],
        "KV cache": mean([report.kv_usage for report in reports]) / _KV_FULL,
        # A replica more does not help requests that have one to themselves.
        "time to first token": (
            _over(reports, "ttft_s", objective.ttft_ms) if running + waiting > now else 0.0
        ),
        "time per token": _over(reports, "tpot_s", objective.tpot_ms) if running > now else 0.0,
    }
    cause, pressure = max(pressures.items(), key=lambda item: item[1])
    demand = now * min(_MOST_AT_ONCE, pressure)
    wanted = now
    if demand > now:
        wanted = math.ceil(demand)
    elif demand <= _SPARE * (now - 1):
        wanted = math.ceil(demand / _SPARE)
    inputs = (
        ("requests", running),
        ("waiting", waiting),
        ("places", float(places)),
        ("kv_usage", mean([report.kv_usage for report in reports])),
        ("ttft_s", mean([report.ttft_s for report in reports if report.ttft_s is not None])),
        ("tpot_s", mean([report.tpot_s for report in reports if report.tpot_s is not None])),
        ("demand", demand),
    )
    reason = f"{cause} at {pressure:.0%} of the limit" if pressure else "no requests"
    return Decision(pool, wanted, now, reason, inputs)


def _over(reports: Sequence[TargetReport], name: str, limit_ms: float | None) -> float:
    """A mean time over its limit; 0 where there is none of either."""
    times = [seconds for report in reports if (seconds := getattr(report, name)) is not None]
    return mean(times) / (limit_ms / 1e3) if limit_ms is not None else 0.0
