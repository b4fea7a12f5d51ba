"""The plan as a figure: speed, latency, depth and cost over load."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specray.cli.plan.report import name_of
from specray.cli.plan.scenario import Facts
from specray.cli.plot import COLOURS, figure, label
from specray.simulate.sizing import Outcome, speedup

_STYLES = ("-", "--", ":", "-.")


class _Panel(NamedTuple):
    title: str
    unit: str
    value: Callable[[Outcome], float | None]


def draw(path: Path, facts: Facts, outcomes: Sequence[Outcome]) -> None:
    """Four panels over the load, a line for each system and size of the draft pool."""
    off = {o.trial.qps: o.summary for o in outcomes if o.trial.system == "off"}
    panels = (
        _Panel("Speed-up over no speculation", "ratio", lambda o: _speedup(o, off)),
        _Panel("Time per token, p95", "ms", lambda o: _ms(o.summary.tpot_s.p95)),
        _Panel("Draft tokens per request and step", "depth", lambda o: o.summary.mean_depth),
        _Panel("Cost of a million answer tokens", "US$", lambda o: o.usd_per_million),
    )
    title = (
        f"{facts.target} on {facts.num_targets} × {facts.target_gpus}, drafted by {facts.draft} on "
        f"{facts.draft_gpus}\n{facts.load}; acceptance {facts.acceptance}; simulated"
    )
    with figure(path, 2, 2, title) as grid:
        for axes, panel in zip(grid.flat, panels, strict=True):
            _draw_panel(axes, panel, outcomes)
        grid[0][0].axhline(1.0, color="black", linewidth=0.6)
        # Decades, and two places between them: more labels than these run into each other.
        grid[1][1].set_yscale("log", subs=(2, 5))
        for which in (grid[1][1].yaxis.set_major_formatter, grid[1][1].yaxis.set_minor_formatter):
            which("{x:g}")
        grid[0][0].legend(fontsize=8)


def _draw_panel(axes: Any, panel: _Panel, outcomes: Sequence[Outcome]) -> None:
    pools = sorted({o.trial.num_drafts for o in outcomes if o.trial.system == "specray"})
    for name, style, line in _lines(outcomes, pools):
        points = [(o.trial.qps, value) for o in line if (value := panel.value(o)) is not None]
        system = name_of(line[0].trial)
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            style,
            label=name,
            color=COLOURS.get(system),
            marker="o",
            markersize=3,
            linewidth=2 if system == "specray" else 1.2,
        )
    axes.set_xscale("log")
    loads = sorted({o.trial.qps for o in outcomes})
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.minorticks_off()
    label(axes, panel.title, "requests per second", panel.unit)


def _lines(
    outcomes: Sequence[Outcome], pools: Sequence[int]
) -> list[tuple[str, str, list[Outcome]]]:
    lines: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        key = name_of(outcome.trial), outcome.trial.num_drafts
        lines.setdefault(key, []).append(outcome)
    named = []
    for (system, num_drafts), line in lines.items():
        is_ours = system == "specray"
        plural = "s" if num_drafts > 1 else ""
        name = f"{system}, {num_drafts} draft{plural}" if num_drafts else system
        style = _STYLES[pools.index(num_drafts) % len(_STYLES)] if is_ours else "-"
        named.append((name, style, line))
    return named


def _speedup(outcome: Outcome, off: dict[float, Any]) -> float | None:
    if outcome.trial.system == "off":
        return None  # 1 by definition: the black line
    return speedup(off[outcome.trial.qps], outcome.summary)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
