"""The plan as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specray.cli.output import columns
from specray.cli.plan.scenario import Facts
from specray.simulate.sizing import Advice, Outcome, Trial, capacity, speedup
from specray.simulate.summary import Summary

_HEADINGS = ("QPS", "system", "drafts", "tok/s", "TTFT p95 s", "TPOT ms", "p95", "p99")
_MORE = ("depth", "accepted", "batch", "draft busy", "speed-up", "$/Mtok")


def as_dict(
    meta: dict[str, str], facts: Facts, outcomes: Sequence[Outcome], advice: Sequence[Advice]
) -> dict[str, Any]:
    """For JSON: everything, under where, when and by which words it was made."""
    return {
        "meta": meta,
        "facts": asdict(facts),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "advice": [asdict(entry) for entry in advice],
    }


def text(
    facts: Facts, outcomes: Sequence[Outcome], advice: Sequence[Advice], tpot_ms: float | None
) -> str:
    """For reading: what was simulated, each trial, and what to do."""
    parts = [_head(facts), columns(_rows(outcomes)), "what to do", columns(_advice(advice))]
    return "\n\n".join([*parts, _capacities(outcomes, tpot_ms)])


def _head(facts: Facts) -> str:
    plural = "s" if facts.num_targets > 1 else ""
    return (
        f"{facts.num_targets} target{plural} {facts.target} on {facts.target_gpus} each, drafts "
        f"{facts.draft} on {facts.draft_gpus} each\n{facts.load}; acceptance {facts.acceptance}, "
        f"depth up to {facts.max_depth}; simulated, seed {facts.seed}"
    )


def _rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    off = {o.trial.qps: o.summary for o in outcomes if o.trial.system == "off"}
    return [_HEADINGS + _MORE, *(_row(outcome, off[outcome.trial.qps]) for outcome in outcomes)]


def _row(outcome: Outcome, off: Summary) -> tuple[str, ...]:
    trial, summary = outcome.trial, outcome.summary
    return (
        f"{trial.qps:g}",
        name_of(trial),
        str(trial.num_drafts or "-"),
        f"{summary.tokens_per_s:.0f}" + ("" if summary.keeps_up else " full"),
        _number(summary.ttft_s.p95, 1, 2),
        _number(summary.mean_tpot_s, 1e3, 1),
        _number(summary.tpot_s.p95, 1e3, 1),
        _number(summary.tpot_s.p99, 1e3, 1),
        f"{summary.mean_depth:.2f}",
        f"{summary.acceptance_rate:.2f}",
        f"{summary.mean_batch:.1f}",
        f"{summary.draft_busy:.0%}" if trial.num_drafts else "-",
        f"{speedup(off, summary):.2f}",
        _number(outcome.usd_per_million, 1, 2),
    )


def name_of(trial: Trial) -> str:
    """A system as it is called in tables and legends."""
    return f"depth {trial.depth}" if trial.depth is not None else trial.system


def _advice(advice: Sequence[Advice]) -> list[tuple[str, ...]]:
    heading = ("QPS", "drafts", "depth", "best fixed", "speed-up", "$/Mtok", "off $/Mtok", "why")
    return [heading, *map(_advice_row, advice)]


def _advice_row(entry: Advice) -> tuple[str, ...]:
    return (
        f"{entry.qps:g}",
        str(entry.num_drafts),
        f"{entry.depth:.1f}",
        str(entry.best_fixed_depth or "-"),
        f"{entry.speedup:.2f}",
        _number(entry.usd_per_million, 1, 2),
        _number(entry.usd_per_million_off, 1, 2),
        entry.reason,
    )


def _capacities(outcomes: Sequence[Outcome], tpot_ms: float | None) -> str:
    limit = f", at a p95 TPOT of {tpot_ms:g} ms or less" if tpot_ms else ""
    lines = [f"highest QPS tried that each keeps up with{limit}"]
    seen: dict[Trial, None] = dict.fromkeys(_anywhere(o.trial) for o in outcomes)
    for trial in seen:
        found = capacity(outcomes, trial, tpot_ms / 1e3 if tpot_ms else None)
        cost = next(
            (
                outcome.usd_per_million
                for outcome in outcomes
                if outcome.trial.qps == found and _anywhere(outcome.trial) == trial
            ),
            None,
        )
        plural = "s" if trial.num_drafts > 1 else ""
        drafts = f", {trial.num_drafts} draft{plural}" if trial.num_drafts else ""
        at = "none" if found is None else f"{found:g} at ${_number(cost, 1, 2)} a million tokens"
        lines.append(f"  {name_of(trial)}{drafts}: {at}")
    return "\n".join(lines)


def _anywhere(trial: Trial) -> Trial:
    return Trial(0.0, trial.system, trial.num_drafts, trial.depth)


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
