"""What a comparison of networks comes to: a table, and curves over the round trip."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from specray.cli.bench.network import OFF
from specray.cli.bench.plan import Cell
from specray.cli.bench.results import SEARCH_ROUND, Condition, Results, Setting
from specray.cli.output import markdown

OURS = ("plain", "copies", "ahead-alone", "ahead")
COLOCATED = ("vllm-draft", "vllm-ngram")
_COMPARED = ("plain", "copies", "ahead-alone")  # ahead with these
_LABELS = {
    "plain": "disaggregated, plain",
    "copies": "plain, and the target's own copies",
    "ahead-alone": "drafting ahead, no copies",
    "ahead": "drafting ahead, and copies",
    "vllm-draft": "vLLM draft_model (co-located)",
    "vllm-ngram": "vLLM ngram (co-located)",
    OFF: "no speculation",
}
_COLOURS = {
    "plain": "#d95f02",
    "copies": "#e6ab02",
    "ahead-alone": "#66a3c7",
    "ahead": "#1b6ca8",
    "vllm-draft": "#3a7d44",
    "vllm-ngram": "#7b5ea7",
    OFF: "#555555",
}


@dataclass(frozen=True, slots=True)
class Line:
    """All systems under one condition: medians over the rounds, in tokens per second."""

    concurrency: int
    temperature: float
    draft_share: float
    rtt_ms: float
    tokens_per_s: dict[str, float]  # ours, without speculation, and vLLM's
    ratios: dict[str, list[float]]  # ahead over another of ours, each over its own off, by round


def summarise(results: Results) -> list[Line]:
    """A line per condition that ours were measured under."""
    lines = []
    for cell, share, rtt_ms in _conditions(results):
        condition = Condition(cell, Setting(), rtt_ms, share)
        speeds = {OFF: _off(results, cell)}
        speeds |= {name: _median(results, name, [condition]) for name in OURS}
        speeds |= {name: _colocated(results, name, cell) for name in COLOCATED}
        lines.append(
            Line(
                *(cell.concurrency, cell.temperature, share, rtt_ms),
                {name: round(speed, 2) for name, speed in speeds.items() if speed is not None},
                {other: _ratios(results, condition, other) for other in _COMPARED},
            )
        )
    return lines


def format_markdown(results: Results) -> str:
    """A line per condition: tokens per second of each system, and ahead over the others."""
    head = ["at once", "T", "draft", "round trip", OFF, *OURS]
    rows = [head + [f"ahead / {other}" for other in _COMPARED] + list(COLOCATED)]
    for line in summarise(results):
        share = line.draft_share
        names = (OFF, *OURS)
        rows.append(
            [
                str(line.concurrency),
                f"{line.temperature:g}",
                f"{share:.0%} of a step" if share else "as fast as it is",
                f"{line.rtt_ms:g} ms",
                *(_text(line.tokens_per_s.get(name)) for name in names),
                *(_spread(line.ratios[other]) for other in _COMPARED),
                *(_text(line.tokens_per_s.get(name)) for name in COLOCATED),
            ]
        )
    rows += [
        [f"{name} failed: {results.reason(name)}", *[""] * (len(rows[0]) - 1)]
        for name in results.failures
    ]
    return markdown(rows)


def draw(results: Results, folder: Path) -> list[Path]:
    """One figure for each slowness of the draft, as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for share in sorted({share for _, share, _ in _conditions(results)}):
        figure = _draw_figure(results, share)
        for kind in ("svg", "png"):
            path = folder / f"network-draft-{round(100 * share)}.{kind}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if kind == "svg" else None)
            paths.append(path)
    return paths


def _draw_figure(results: Results, share: float) -> Any:
    from matplotlib.figure import Figure

    chosen = [
        (cell, rtt_ms) for cell, of_share, rtt_ms in _conditions(results) if of_share == share
    ]
    temperatures = sorted({cell.temperature for cell, _ in chosen})
    loads = sorted({cell.concurrency for cell, _ in chosen})
    rtts_ms = sorted({rtt_ms for _, rtt_ms in chosen})
    figure = Figure(
        figsize=(1.2 + 3.4 * len(loads), 1.6 + 2.8 * len(temperatures)), layout="constrained"
    )
    all_axes = figure.subplots(len(temperatures), len(loads), squeeze=False, sharex=True)
    cells = {(cell.temperature, cell.concurrency): cell for cell, _ in chosen}
    for row, temperature in zip(all_axes, temperatures, strict=True):
        for axes, load in zip(row, loads, strict=True):
            _draw_cell(axes, results, cells[temperature, load], share, rtts_ms)
        row[0].set_ylabel("tokens/s")
    for axes in all_axes[-1]:
        axes.set_xlabel("simulated round trip, ms")
    slow = f"a proposal takes {share:.0%} of a step" if share else "the draft as fast as it is"
    figure.suptitle(f"Tokens per second by round trip between target and draft; {slow}")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(loads), frameon=False)
    return figure


def _draw_cell(
    axes: Any, results: Results, cell: Cell, share: float, rtts_ms: Iterable[float]
) -> None:
    for name in OURS:
        points = [
            (rtt_ms, speed)
            for rtt_ms in rtts_ms
            if (speed := _median(results, name, [Condition(cell, Setting(), rtt_ms, share)]))
            is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=_COLOURS[name], label=_LABELS[name])
    levels = {OFF: _off(results, cell)} | {n: _colocated(results, n, cell) for n in COLOCATED}
    for name, speed in levels.items():
        if speed is not None:
            axes.axhline(speed, linestyle="--", color=_COLOURS[name], label=_LABELS[name])
    request = "request" if cell.concurrency == 1 else "requests"
    greedy = "greedy" if cell.temperature == 0 else f"temperature {cell.temperature:g}"
    axes.set_title(f"{cell.concurrency} {request} at once, {greedy}", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _conditions(results: Results) -> list[tuple[Cell, float, float]]:
    """What ours were measured under: cell, the draft's share of a step, round trip."""
    found = {
        (c.cell.concurrency, c.cell.temperature, c.draft_share, c.rtt_ms): (
            c.cell,
            c.draft_share,
            c.rtt_ms,
        )
        for name in OURS
        for c in results.conditions(name)
    }
    return [found[key] for key in sorted(found)]


def _median(results: Results, name: str, conditions: Iterable[Condition]) -> float | None:
    speeds = [
        speed
        for condition in conditions
        for number, speed in results.speeds(name, condition).items()
        if number != SEARCH_ROUND
    ]
    return median(speeds) if speeds else None


def _off(results: Results, cell: Cell) -> float | None:
    """Without speculation, in the same services, whatever was simulated later."""
    speeds = [
        speed
        for name in OURS
        for condition in results.conditions(f"{name}:{OFF}")
        if condition.cell == cell
        for speed in results.speeds(f"{name}:{OFF}", condition).values()
    ]
    return median(speeds) if speeds else None


def _colocated(results: Results, name: str, cell: Cell) -> float | None:
    return _median(results, name, [c for c in results.conditions(name) if c.cell == cell])


def _ratios(results: Results, condition: Condition, other: str) -> list[float]:
    """Drafting ahead over another, each against its own service without speculation, by round."""
    off = replace(condition, rtt_ms=0.0)
    (there, there_off), (ahead, ahead_off) = (
        (results.speeds(name, condition), results.speeds(f"{name}:{OFF}", off))
        for name in (other, "ahead")
    )
    rounds = ahead.keys() & there.keys() & ahead_off.keys() & there_off.keys()
    return [round((ahead[n] / ahead_off[n]) / (there[n] / there_off[n]), 3) for n in sorted(rounds)]


def _spread(ratios: Sequence[float]) -> str:
    """The median, and between what the rounds lie."""
    if len(ratios) < 2:
        return "".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _text(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.1f}"
