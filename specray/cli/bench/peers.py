"""`specray bench --peers`: vLLM and its own speculation, Hugging Face's, and ours, on equal cores.

First systems that have a choice of settings (a fixed depth, and on a CPU how many of the cores
compute the model while the rest is left to the server) are tried at all, and the fastest for each
number of requests at once and temperature is kept. Then all are measured in rounds, in turn.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specray.cli.bench.deployment import Deployment
from specray.cli.bench.plan import Cell, Plan, make_cells
from specray.cli.bench.results import (
    SEARCH_ROUND,
    Condition,
    Measurement,
    Results,
    Setting,
    measured,
)
from specray.cli.bench.systems import GenerateSystem, SpecraySystem, System, VllmSystem
from specray.cli.bench.workloads import MIXED

KIND = "peers"
BASELINE = "vllm"
SHARED_TOKENS = 65536  # of earlier answers, which vLLM's `suffix` looks up, too
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 8}


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """What is measured, how deep, and for how long."""

    search: Plan
    rounds: Plan
    depths: tuple[int, ...]


def make_plan(
    *, is_quick: bool, temperatures: Sequence[float] = (), num_rounds: int | None = None
) -> PeersPlan:
    """Quick: one greedy round, three depths. Full: three rounds, also at temperature 1.

    Args:
        is_quick: which of them.
        temperatures: to measure at, instead.
        num_rounds: likewise.
    """
    cells = make_cells(is_quick=is_quick, temperatures=temperatures)
    search = make_search(cells)
    if is_quick:
        rounds = Plan(cells, num_rounds or 1, num_answers=2, ramp_s=2.0, window_s=6.0)
        return PeersPlan(search, rounds, depths=(1, 2, 4))
    rounds = Plan(cells, num_rounds or 3, num_answers=2, ramp_s=2.0, window_s=10.0)
    return PeersPlan(search, rounds, depths=(1, 2, 3, 5))


def make_search(cells: Sequence[Cell]) -> Plan:
    """In which every setting is tried, for each load and temperature among these cells."""
    tried = dict.fromkeys(Cell(MIXED, cell.concurrency, cell.temperature) for cell in cells)
    return Plan(tuple(tried), num_rounds=1, num_answers=3, ramp_s=2.0, window_s=12.0, max_tokens=96)


def make_systems(deployment: Deployment, depths: tuple[int, ...]) -> list[System]:
    """All systems, the baseline first.

    Raises:
        InvalidConfigError: the deployment has no draft model.
    """
    by_depth = tuple(Setting(depth) for depth in depths)
    plain = make_settings(deployment, (None,))
    deep = make_settings(deployment, depths)
    draft_model = {"method": "draft_model", "model": deployment.draft}
    ours: dict[str, dict[str, Any]] = {
        "lookup": {"method": "prompt_lookup"},
        "shared": {"method": "prompt_lookup", "prompt_lookup": {"shared_tokens": SHARED_TOKENS}},
        "draft": {"method": "model"},
        "hybrid": {"method": "hybrid"},
    }
    if deployment.has_ngrams:
        ours["ngram"] = {"method": "ngram"}
    return [
        VllmSystem(BASELINE, deployment, None, plain),
        VllmSystem("vllm-ngram", deployment, NGRAM, deep),
        VllmSystem("vllm-suffix", deployment, {"method": "suffix"}, deep, "arctic-inference"),
        VllmSystem("vllm-draft", deployment, draft_model, deep),
        GenerateSystem("hf", "plain", deployment),
        GenerateSystem("hf-lookup", "prompt_lookup", deployment, by_depth),
        GenerateSystem("hf-assisted", "assisted", deployment, by_depth, needs_draft=True),
        *(
            SpecraySystem(f"specray-{name}", deployment, {"draft": draft})
            for name, draft in ours.items()
        ),
        SpecraySystem(
            *("specray-hybrid-direct", deployment, {"draft": ours["hybrid"]}),
            layer="HTTP, Ray Serve's HAProxy",
            options=("--direct-streaming",),
        ),
    ]


def make_settings(deployment: Deployment, depths: Sequence[int | None]) -> tuple[Setting, ...]:
    """vLLM's: each depth, on a CPU with all cores that we may use, and with one left free.

    One core is as fast as two where memory is the limit, and then the server has the other.
    """
    num_cores = len(os.sched_getaffinity(0))
    threads: tuple[int | None, ...] = (None,)
    if deployment.is_on_cpu:
        threads = (num_cores - 1, num_cores) if num_cores > 1 else (1,)
    return tuple(Setting(depth, num_threads) for depth in depths for num_threads in threads)


def make_pieces(
    systems: Sequence[System], plan: PeersPlan, results: Results
) -> Iterator["SystemPiece"]:
    """What is to be measured, in order; the rounds ask for the search's results when they come."""
    yield from search_pieces(systems, plan)
    for round_number in range(1, plan.rounds.num_rounds + 1):
        for system in systems if round_number % 2 else list(reversed(systems)):
            yield from round_pieces(system, round_number, plan, results)


def search_pieces(systems: Sequence[System], plan: PeersPlan) -> Iterator["SystemPiece"]:
    """Every setting of systems that have a choice."""
    for system in systems:
        for tried in system.settings if len(system.settings) > 1 else ():
            yield _piece(system, SEARCH_ROUND, tried, plan.search.cells, plan.search)


def round_pieces(
    system: System, round_number: int, plan: PeersPlan, results: Results
) -> Iterator["SystemPiece"]:
    """A system's part of a round, in the settings that the search found best."""
    for setting, cells in _by_setting(system, plan, results).items():
        yield _piece(system, round_number, setting, cells, plan.rounds)


def best_setting(system: System, cell: Cell, plan: PeersPlan, results: Results) -> Setting | None:
    """The fastest at a cell's load and temperature; None if not all have been tried."""
    if len(system.settings) == 1:
        return system.settings[0]
    load = (cell.concurrency, cell.temperature)
    (tried,) = (c for c in plan.search.cells if (c.concurrency, c.temperature) == load)
    found = {
        setting: speeds[SEARCH_ROUND]  # later ones may be of the same cell
        for setting in system.settings
        if SEARCH_ROUND in (speeds := results.speeds(system.name, Condition(tried, setting)))
    }
    return max(found, key=found.__getitem__) if len(found) == len(system.settings) else None


def _by_setting(system: System, plan: PeersPlan, results: Results) -> dict[Setting, list[Cell]]:
    """The cells that a system is measured in, by how it is started for them."""
    cells: dict[Setting, list[Cell]] = {}
    for cell in filter(system.can, plan.rounds.cells):
        setting = best_setting(system, cell, plan, results)
        if setting is not None:  # else the search was not finished
            cells.setdefault(setting, []).append(cell)
    return cells


def _piece(
    system: System, round_number: int, setting: Setting, cells: Sequence[Cell], plan: Plan
) -> "SystemPiece":
    return SystemPiece(system, round_number, setting, tuple(filter(system.can, cells)), plan)


@dataclass(frozen=True, slots=True)
class SystemPiece:
    """One system in one round, started in one way."""

    of: System
    round_number: int
    setting: Setting
    cells: tuple[Cell, ...]
    plan: Plan

    @property
    def system(self) -> str:
        """Its name."""
        return self.of.name

    @property
    def title(self) -> str:
        """Who, when and how."""
        when = f"round {self.round_number}" if self.round_number else "search"
        return ", ".join(filter(None, (f"{self.system}: {when}", str(self.setting))))

    @property
    def expected_s(self) -> float:
        """Start, cells and end."""
        return self.of.start_s + sum(map(self.plan.expected_cell_s, self.cells))

    def is_done(self, results: Results) -> bool:
        """Whether every cell has its speed in this round."""
        return results.has(self.system, self.round_number, self._conditions())

    def measure(self, tell: Callable[[str], None]) -> list[Measurement]:
        """Runs the system; raises SpecrayError if it fails."""
        index = max(0, self.round_number - 1)
        speeds = self.of.measure(self.cells, self.setting, self.plan, index, tell)
        return [
            measured(self.system, self.round_number, Condition(cell, self.setting), speed)
            for cell, speed in speeds.items()
        ]

    def _conditions(self) -> list[Condition]:
        return [Condition(cell, self.setting) for cell in self.cells]
