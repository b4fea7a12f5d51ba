"""What is measured: the cells of the table, and how much work goes into each."""

from dataclasses import dataclass
from typing import Literal

from specray.cli.bench.workloads import WORKLOADS

System = Literal["off", "specray"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition, measured with speculation off and on."""

    workload: str
    concurrency: int  # requests in flight at once
    temperature: float
    num_requests: int  # per round and system
    max_tokens: int  # per request; the end of the text is ignored


@dataclass(frozen=True, slots=True)
class Plan:
    """All cells, each measured in every round."""

    cells: tuple[Cell, ...]
    num_rounds: int


def make_plan(*, is_quick: bool) -> Plan:
    """The quick plan fits into five minutes on two cores; the full one takes over an hour there."""
    temperatures = (0.0,) if is_quick else (0.0, 1.0)
    sizes = ((1, 1), (8, 8)) if is_quick else ((1, 4), (8, 16))
    cells = tuple(
        Cell(workload, concurrency, temperature, num_requests, 80 if is_quick else 192)
        for temperature in temperatures
        for workload in WORKLOADS
        for concurrency, num_requests in sizes
    )
    return Plan(cells, num_rounds=2 if is_quick else 5)


def order(round_index: int) -> tuple[System, System]:
    """Which system goes first: they take turns, so that neither always finds warm caches."""
    return ("off", "specray") if round_index % 2 == 0 else ("specray", "off")
