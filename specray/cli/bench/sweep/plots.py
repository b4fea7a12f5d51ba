"""The sweep as a figure: speed and latency over load, depth and acceptance over time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specray.cli.bench.sweep.plan import OURS, SweepPlan
from specray.cli.bench.sweep.runner import Cell
from specray.cli.bench.sweep.stats import Row, rows
from specray.cli.plot import COLOURS, figure, label

_MARKERS = {"off": "s", "table": "^", OURS: "o"}


def draw(path: Path, meta: Mapping[str, str], plan: SweepPlan, cells: Sequence[Cell]) -> None:
    """Six panels: four over the load, and ours over time."""
    table = rows(plan, cells)
    title = (
        f"Depth policies under rising load: answers of {plan.mean_tokens} tokens on average, "
        f"{plan.num_rounds} round{'s' if plan.num_rounds > 1 else ''}\n"
        f"{meta['machine']}, commit {meta['commit']}, {meta['date'][:10]}"
    )
    with figure(path, 3, 2, title) as grid:
        _over_load(grid[0][0], plan, table, "Throughput", "tokens/s", lambda r: r.tokens_per_s)
        _over_load(
            grid[0][1], plan, table, "Time per token, p50", "ms", lambda r: 1e3 * r.tpot_s[0]
        )
        _over_load(
            grid[1][0], plan, table, "Time per token, p95", "ms", lambda r: 1e3 * r.tpot_s[1]
        )
        _over_load(grid[1][1], plan, table, "Time to first token, p95", "s", lambda r: r.ttft_s[1])
        _over_time(grid[2], plan, cells)
        grid[1][1].autoscale(axis="y")  # from 0 on there is no logarithm
        grid[1][1].set_yscale("log")
        grid[1][1].yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        grid[1][1].yaxis.set_major_formatter("{x:g}")
        grid[1][1].yaxis.set_minor_formatter("")
        grid[0][0].legend(fontsize=7, ncols=2)


def _over_load(
    axes: Any,
    plan: SweepPlan,
    table: Sequence[Row],
    title: str,
    unit: str,
    value: Callable[[Row], float],
) -> None:
    names = [load.name for load in plan.loads]
    for system in plan.systems:
        line = [value(row) for row in table if row.system == system]
        axes.plot(
            range(len(names)),
            line,
            color=COLOURS.get(system),
            marker=_MARKERS.get(system, "."),
            markersize=4,
            linewidth=2.2 if system == OURS else 1.1,
            zorder=3 if system == OURS else 2,
            label=system,
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom=0)
    label(axes, title, "requests per second", unit)


def _over_time(pair: Any, plan: SweepPlan, cells: Sequence[Cell]) -> None:
    """Depth and acceptance of ours in the first round, its loads one after the other."""
    label(pair[0], "specray's depth over time, round 1", "s", "draft tokens a request and step")
    label(pair[1], "specray's acceptance over time, round 1", "s", "accepted over verified")
    start_s = 0.0
    for load in plan.loads:
        name = f"{load.name} QPS" if load.qps else load.name
        found = [c for c in cells if (c.load, c.system, c.round_index) == (load.name, OURS, 0)]
        for cell in found:
            times = [start_s + moment.at_s for moment in cell.moments]
            known = [m for m in cell.moments if m.acceptance_rate is not None]
            pair[0].plot(times, [m.depth for m in cell.moments], ".-", label=name, linewidth=1)
            pair[1].plot(
                [start_s + m.at_s for m in known],
                [m.acceptance_rate for m in known],
                ".-",
                linewidth=1,
            )
            start_s = max([start_s, *times]) + 2.0
    pair[0].set_ylim(bottom=0)
    pair[1].set_ylim(0, 1.05)
    if start_s:
        pair[0].legend(fontsize=7)
