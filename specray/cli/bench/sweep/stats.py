"""What cells amount to: figures of each system at each load, and ours against the others.

Ratios are taken within a round, where both systems met the same requests within minutes of each
other, and averaged over rounds as logarithms.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import NamedTuple

import numpy as np

from specray.cli.bench.sweep.plan import FIXED, OURS, SweepPlan
from specray.cli.bench.sweep.runner import Cell

# 0.975 quantiles of Student's t by degrees of freedom; beyond, the normal distribution's.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96

Measure = Callable[[Cell], float]


class Ratio(NamedTuple):
    """A mean of paired ratios, and the interval that holds it with 95 % confidence."""

    mean: float
    low: float | None  # None from a single round
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One system under one load, over all rounds."""

    load: str
    system: str
    tokens_per_s: float  # medians over rounds
    reader_tokens_per_s: float  # of one answer, waiting included; the mean over answers
    ttft_s: tuple[float, float, float]  # p50, p95, p99 over all answers of all rounds
    tpot_s: tuple[float, float, float]
    depth: float | None
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours at one load, by one measure."""

    load: str
    measure: str
    to_off: Ratio
    best_fixed: str  # the best of off and the fixed depths at this load
    to_best_fixed: Ratio


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours over the whole sweep, by one measure."""

    measure: str
    best_single_depth: str  # the fixed depth with the best mean over all loads
    to_best_single_depth: float
    least_to_off: float  # at the worst load
    least_to_best_fixed: float


def throughput(cell: Cell) -> float:
    """Tokens per second of the service."""
    return cell.tokens_per_s


def reader_speed(cell: Cell) -> float:
    """Tokens per second that a reader sees, waiting included; the mean over answers."""
    return sum(answer.tokens_per_s for answer in cell.answers) / len(cell.answers)


MEASURES: dict[str, Measure] = {"throughput": throughput, "reader speed": reader_speed}


def rows(plan: SweepPlan, cells: Sequence[Cell]) -> list[Row]:
    """A row for each load and system."""
    return [
        _row(load.name, system, _of(cells, load.name, system))
        for load in plan.loads
        for system in plan.systems
    ]


def compare(plan: SweepPlan, cells: Sequence[Cell]) -> list[Comparison]:
    """Ours beside off and the best fixed choice, at each load and by each measure."""
    choices = [system for system in plan.systems if system == "off" or system in FIXED]
    found = []
    for name, measure in MEASURES.items():
        for load in plan.loads:
            level = {s: _mean_log(measure, _of(cells, load.name, s)) for s in choices}
            best = max(choices, key=lambda system: level[system])
            found.append(
                Comparison(
                    load.name,
                    name,
                    ratio(cells, load.name, "off", measure),
                    best,
                    ratio(cells, load.name, best, measure),
                )
            )
    return found


def verdicts(plan: SweepPlan, cells: Sequence[Cell]) -> list[Verdict]:
    """Ours over all loads; nothing where no fixed depth was measured."""
    if not set(FIXED).intersection(plan.systems):
        return []
    compared = compare(plan, cells)
    found = []
    for name, measure in MEASURES.items():
        over = {
            depth: _geometric(ratio(cells, load.name, depth, measure).mean for load in plan.loads)
            for depth in plan.systems
            if depth in FIXED
        }
        best = min(over, key=lambda depth: over[depth])
        mine = [entry for entry in compared if entry.measure == name]
        found.append(
            Verdict(
                name,
                best,
                over[best],
                min(entry.to_off.mean for entry in mine),
                min(entry.to_best_fixed.mean for entry in mine),
            )
        )
    return found


def ratio(cells: Sequence[Cell], load: str, system: str, measure: Measure) -> Ratio:
    """Ours over a system at a load, paired by round."""
    ours = {cell.round_index: measure(cell) for cell in _of(cells, load, OURS)}
    theirs = {cell.round_index: measure(cell) for cell in _of(cells, load, system)}
    logs = [math.log(ours[index] / theirs[index]) for index in sorted(ours)]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None)
    t = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else _NORMAL
    half = t * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _row(load: str, system: str, cells: Sequence[Cell]) -> Row:
    answers = [answer for cell in cells for answer in cell.answers]
    return Row(
        load=load,
        system=system,
        tokens_per_s=median(map(throughput, cells)),
        reader_tokens_per_s=median(map(reader_speed, cells)),
        ttft_s=_tail([answer.ttft_s for answer in answers]),
        tpot_s=_tail([answer.tpot_s for answer in answers]),
        depth=_mean(cell.depth for cell in cells),
        acceptance_rate=_mean(cell.acceptance_rate for cell in cells),
    )


def _of(cells: Sequence[Cell], load: str, system: str) -> list[Cell]:
    return [cell for cell in cells if cell.load == load and cell.system == system]


def _tail(values: Sequence[float]) -> tuple[float, float, float]:
    p50, p95, p99 = (float(value) for value in np.percentile(values, [50, 95, 99]))
    return p50, p95, p99


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_log(measure: Measure, cells: Sequence[Cell]) -> float:
    return sum(math.log(measure(cell)) for cell in cells) / len(cells)


def _geometric(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
