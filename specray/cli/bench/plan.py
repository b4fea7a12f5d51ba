"""What is measured: the cells of the table, and how long each is watched."""

from dataclasses import dataclass
from typing import Literal

from specray.cli.bench.workloads import WORKLOADS

System = Literal["off", "specray"]
CONCURRENCIES = (1, 8)


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition, measured with speculation off and on."""

    workload: str
    concurrency: int  # answers in flight at any time
    temperature: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All cells, each measured in every round, and the window in which tokens count."""

    cells: tuple[Cell, ...]
    num_rounds: int
    ramp_s: float  # load without counting: batches fill, the last cell's streams go away
    window_s: float
    max_tokens: int = 160  # per answer; the end of the text is ignored

    @property
    def num_windows(self) -> int:
        """Measurements in all: both systems, every cell and round."""
        return 2 * len(self.cells) * self.num_rounds

    @property
    def seconds_per_window(self) -> float:
        """What one measurement takes, with its ramp."""
        return self.ramp_s + self.window_s


def make_plan(*, is_quick: bool) -> Plan:
    """The quick plan takes 192 s, so that it fits into five minutes; the full one 46 minutes."""
    cells = tuple(
        Cell(workload, concurrency, temperature)
        for temperature in ((0.0,) if is_quick else (0.0, 1.0))
        for workload in WORKLOADS
        for concurrency in CONCURRENCIES
    )
    if is_quick:
        return Plan(cells, num_rounds=2, ramp_s=2.0, window_s=6.0)
    return Plan(cells, num_rounds=5, ramp_s=3.0, window_s=20.0)


def order(round_index: int) -> tuple[System, System]:
    """Which system goes first: they take turns, so that neither always finds warm caches."""
    return ("off", "specray") if round_index % 2 == 0 else ("specray", "off")
