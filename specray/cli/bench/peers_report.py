"""What a comparison with peers comes to: medians over rounds, ratios within them, a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from statistics import median

from specray.cli.bench.peers import BASELINE
from specray.cli.bench.results import Condition, Results, Setting
from specray.cli.bench.systems import System
from specray.cli.output import markdown


@dataclass(frozen=True, slots=True)
class Figure:
    """One system at one load and temperature, over all workloads."""

    system: str
    concurrency: int
    temperature: float
    setting: Setting
    tokens_per_s: float  # geometric mean over the workloads, median over the rounds
    ratio: float | None  # to the baseline, of the same round and over the same workloads; median
    num_rounds: int


def summarise(systems: Sequence[System], results: Results) -> list[Figure]:
    """A figure for every system and load that was measured in all its workloads."""
    figures = []
    for system in systems:
        conditions = results.conditions(system.name)
        loads = dict.fromkeys(
            (c.cell.temperature, c.cell.concurrency, c.setting) for c in conditions
        )
        for temperature, concurrency, setting in loads:
            chosen = [
                c
                for c in conditions
                if (c.cell.temperature, c.cell.concurrency, c.setting)
                == (temperature, concurrency, setting)
            ]
            speeds = _means(system.name, chosen, results)
            if not speeds:
                continue
            base = _means(BASELINE, _like(BASELINE, chosen, results), results)
            ratios = [speed / base[number] for number, speed in speeds.items() if number in base]
            figures.append(
                Figure(
                    system.name,
                    concurrency,
                    temperature,
                    setting,
                    median(speeds.values()),
                    median(ratios) if ratios else None,
                    len(speeds),
                )
            )
    return figures


def format_markdown(systems: Sequence[System], results: Results) -> str:
    """A table: a line per system, tokens per second and ratio to the baseline for each load."""
    figures = summarise(systems, results)
    loads = sorted({(figure.temperature, figure.concurrency) for figure in figures})
    found = {(f.system, f.temperature, f.concurrency): f for f in figures}
    heads = [f"T={temperature:g}, {concurrency} at once" for temperature, concurrency in loads]
    lines = [["system", "measured through", *heads]]
    for system in systems:
        cells = [_describe(found.get((system.name, *load))) for load in loads]
        if system.name in results.failures:
            name = f"{system.name} (failed: {results.reason(system.name)})"
            lines.append([name, system.layer, *cells])
        elif any(cells):
            lines.append([system.name, system.layer, *cells])
    return markdown(lines)


def _like(system: str, conditions: Sequence[Condition], results: Results) -> list[Condition]:
    """The conditions in which a system was measured in the same cells."""
    cells = {condition.cell for condition in conditions}
    return [condition for condition in results.conditions(system) if condition.cell in cells]


def _means(system: str, conditions: Sequence[Condition], results: Results) -> dict[int, float]:
    """By round, the geometric mean over these conditions; only rounds that have them all."""
    by_condition = [results.speeds(system, condition) for condition in conditions]
    complete = set.intersection(*map(set, by_condition)) if by_condition else set()
    return {
        number: prod(speeds[number] for speeds in by_condition) ** (1 / len(by_condition))
        for number in sorted(complete - {0})
    }


def _describe(figure: Figure | None) -> str:
    if figure is None:
        return ""
    ratio = "" if figure.ratio is None else f" ({figure.ratio:.2f})"
    return ", ".join(filter(None, (f"{figure.tokens_per_s:.1f}{ratio}", str(figure.setting))))
