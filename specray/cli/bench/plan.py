"""What is measured: the cells of the table, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specray.cli.bench.workloads import WORKLOADS

System = Literal["off", "specray"]
CONCURRENCIES = (1, 8)
_MEAN_LENGTH = 0.75  # of `max_tokens`, a guess: answers end where the model ends them
_SLOW_TOKENS_PER_S = 18.0  # one request without speculation, two cores, a model of 135M in float32


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition, measured with speculation off and on."""

    workload: str
    concurrency: int  # answers in flight at any time
    temperature: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All cells, each measured in every round, and for how long."""

    cells: tuple[Cell, ...]
    num_rounds: int
    num_answers: int  # timed whole, of a cell with one answer in flight
    ramp_s: float  # of other cells: load without counting, at least, while batches fill
    window_s: float  # of other cells: the time in which tokens count
    max_tokens: int = 160  # per answer; most of some kinds end before

    def first_prompt(self, cell: Cell, round_index: int) -> int:
        """The number of the prompt that a round of a cell begins with: the same for all systems."""
        return round_index * (self.num_answers if cell.concurrency == 1 else cell.concurrency)

    @property
    def num_measurements(self) -> int:
        """In all: both systems, every cell and round."""
        return 2 * len(self.cells) * self.num_rounds

    def expected_cell_s(self, cell: Cell) -> float:
        """What one measurement of a cell takes, on a machine like the slowest that we know."""
        if cell.concurrency == 1:
            return self.num_answers * _MEAN_LENGTH * self.max_tokens / _SLOW_TOKENS_PER_S
        return self.ramp_s + self.window_s


def make_plan(
    *, is_quick: bool, temperatures: Sequence[float] = (), num_rounds: int | None = None
) -> Plan:
    """The quick plan takes some 200 s, to fit into five minutes; the full one 43 minutes.

    Args:
        is_quick: which of them.
        temperatures: others than its own: greedy, and for the full plan 1 as well.
        num_rounds: others than its own: two, and five of the full plan.
    """
    cells = make_cells(is_quick=is_quick, temperatures=temperatures)
    if is_quick:
        return Plan(cells, num_rounds or 2, num_answers=2, ramp_s=1.5, window_s=5.0, max_tokens=120)
    return Plan(cells, num_rounds or 5, num_answers=3, ramp_s=3.0, window_s=20.0)


def make_cells(*, is_quick: bool, temperatures: Sequence[float] = ()) -> tuple[Cell, ...]:
    """Every workload, alone and loaded: greedy, and if it is not to be quick at temperature 1 too.

    Args:
        is_quick: whether it is.
        temperatures: others than these.
    """
    return tuple(
        Cell(workload, concurrency, temperature)
        for temperature in temperatures or ((0.0,) if is_quick else (0.0, 1.0))
        for workload in WORKLOADS
        for concurrency in CONCURRENCIES
    )


def order(round_index: int) -> tuple[System, System]:
    """Which system goes first: they take turns, so that neither always finds warm caches."""
    return ("off", "specray") if round_index % 2 == 0 else ("specray", "off")
