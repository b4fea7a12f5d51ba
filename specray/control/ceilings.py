"""How deep and how broad drafts may draft at most: the slow loop's bounds for the fast ones."""

import math
from collections.abc import Sequence

from specray.control.pool_model import DraftCosts, mean, waited_share
from specray.control.pools import Decision
from specray.control.reports import DraftReport, TargetReport

_IDLE = 0.5  # needed utilisation up to which drafting ahead is in nobody's way
_BELOW, _ABOVE = 3 / 16, 1 / 16  # of all outcomes: how far from a ceiling it stays as it is
_LEAST_GAIN = 1.01  # of another depth; what brings less is noise
_ENOUGH = 0.5  # draft tokens per request and step, from which on survivals are known


def depth_ceiling(
    targets: Sequence[TargetReport],
    drafts: Sequence[DraftReport],
    costs: DraftCosts,
    before: int,
    most: int,
) -> Decision:
    """The depth whose tokens are worth the time that drafting them takes.

    It maximises tokens per second of a step, E(depth) / (T + m * a(depth)), where the answer's time
    a grows with the depth. Survival beyond what has been verified goes on as it did, so a ceiling
    rises again. The one before stays unless another is better by more than noise. The fast loop
    chooses below it, token by token.
    """
    seen = [target for target in targets if target.survivals and target.depth >= _ENOUGH]
    length = mean([draft.tokens_per_answer for draft in drafts if draft.tokens_per_answer])
    if not seen or not length:
        return Decision("depth ceiling", most, before, "nothing is known of deep tokens yet")
    values = [
        sum(_tokens_per_s(target, len(drafts), costs, length, depth) for target in seen)
        for depth in range(1, most + 1)
    ]
    best = max(range(most), key=lambda i: (values[i], i)) + 1
    value = before if values[best - 1] <= _LEAST_GAIN * values[before - 1] else best
    inputs = (
        ("tokens_per_answer", length),
        ("answer_s", costs.batch_s(mean([t.num_running for t in seen]) / len(drafts))),
        ("waited_share", mean([waited_share(target) for target in seen])),
        ("survival_at_1", mean([target.survivals[0] for target in seen])),
        ("gain_over_most", values[value - 1] / values[-1]),
    )
    return Decision("depth ceiling", value, before, _why(values, best, value), inputs)


def fan_out_ceiling(drafts: Sequence[DraftReport], before: int, most: int) -> Decision:
    """Outcomes drafted for ahead: fewer where drafts are busy with what is waited for."""
    needed = max((draft.needed for draft in drafts), default=0.0)
    free = min(1.0, max(0.0, (1 - needed) / (1 - _IDLE)))
    exact = free * most
    is_near = 0 < exact < most and -_BELOW < (exact - before) / most < _ABOVE
    value = before if is_near else math.ceil(exact)  # which does not waver with the noise
    reason = "drafts have time" if value == most else f"drafts are busy answering: {needed:.0%}"
    return Decision("fan-out ceiling", value, before, reason, (("needed", needed),))


def _why(values: Sequence[float], best: int, value: int) -> str:
    """Why the ceiling is this value, given tokens per second at each depth."""
    most = len(values)
    if value == most:
        return "none needed"
    if value != best:
        return (
            f"depth {best} would bring {values[best - 1] / values[value - 1] - 1:.1%} more: noise"
        )
    gain = values[best - 1] / values[-1] - 1
    return f"deeper costs more wait than it brings: {gain:+.1%} over {most}"


def _tokens_per_s(
    target: TargetReport, num_drafts: int, costs: DraftCosts, length: float, depth: int
) -> float:
    answer_s = costs.batch_s(target.num_running / num_drafts) * depth / length
    step_s = target.gain_step_s or target.step_s
    seconds = step_s + waited_share(target) * (target.relay_s + answer_s)
    return (1 + sum(_survivals(target.survivals, depth))) / max(seconds, 1e-9)


def _survivals(known: Sequence[float], depth: int) -> list[float]:
    """By place; beyond those that are known each is the same part of the one before."""
    survivals = list(known[:depth])
    rate = known[-1] ** (1 / len(known))
    while len(survivals) < depth:
        survivals.append(survivals[-1] * rate)
    return survivals
