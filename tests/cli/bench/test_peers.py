from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specray.cli.bench.peers import best_setting, make_pieces, make_plan, make_settings
from specray.cli.bench.peers_report import format_markdown, summarise
from specray.cli.bench.pieces import run_pieces
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.results import Condition, Results, Setting, measured
from specray.cli.bench.systems import Speeds, System
from specray.cli.bench.workloads import WORKLOADS

PLAN = make_plan(is_quick=True)
FULL = make_plan(is_quick=False)
ALONE, EIGHT = Cell("chat", 1, 0.0), Cell("chat", 8, 0.0)


@dataclass
class FakeSystem:
    """A system whose speed depends on depth and load only."""

    name: str
    speed: Callable[[Cell, int | None], float]
    settings: tuple[Setting, ...] = (Setting(),)
    most_at_once: int = 8
    layer: str = "HTTP"
    start_s: float = 10.0
    runs: list[tuple[int | None, int, int]] = field(default_factory=list)

    def can(self, cell: Cell) -> bool:
        return cell.concurrency <= self.most_at_once

    def measure(
        self,
        cells: Sequence[Cell],
        setting: Setting,
        plan: Plan,
        round_index: int,
        tell: Callable[[str], None],
    ) -> Speeds:
        self.runs.append((setting.depth, round_index, len(cells)))
        return {cell: self.speed(cell, setting.depth) for cell in cells}


def deep_is_fast_alone(cell: Cell, depth: int | None) -> float:
    assert depth is not None
    return 10.0 * depth if cell.concurrency == 1 else 100.0 / depth


@pytest.fixture
def results() -> Results:
    return Results(None, "peers", {})


@pytest.fixture
def systems() -> list[System]:
    return [
        FakeSystem("vllm", lambda cell, _: 20.0 if cell.concurrency == 1 else 100.0),
        FakeSystem("vllm-ngram", deep_is_fast_alone, (Setting(2), Setting(4))),
        FakeSystem("hf", lambda _cell, _depth: 10.0, most_at_once=1),
    ]


def test_other_temperatures_replace_the_plans() -> None:
    greedy = make_plan(is_quick=False, temperatures=[0.0])

    assert {cell.temperature for cell in FULL.rounds.cells} == {0.0, 1.0}
    assert set(greedy.rounds.cells) == {c for c in FULL.rounds.cells if c.temperature == 0.0}
    assert {cell.temperature for cell in FULL.search.cells} == {0.0, 1.0}
    assert {cell.temperature for cell in greedy.search.cells} == {0.0}


def test_another_number_of_rounds_changes_nothing_else() -> None:
    assert make_plan(is_quick=True, num_rounds=3).rounds == replace(PLAN.rounds, num_rounds=3)


def test_each_load_gets_its_best_depth(systems: list[System], results: Results) -> None:
    run_pieces(make_pieces(systems, PLAN, results), results, None, lambda _: None)

    ngram = systems[1]
    assert isinstance(ngram, FakeSystem)
    assert best_setting(ngram, ALONE, PLAN, results) == Setting(4)
    assert best_setting(ngram, EIGHT, PLAN, results) == Setting(2)
    assert ngram.runs == [(2, 0, 2), (4, 0, 2), (4, 0, 3), (2, 0, 3)]


def test_each_temperature_gets_its_best_depth(results: Results) -> None:
    def deep_is_fast_if_greedy(cell: Cell, depth: int | None) -> float:
        return float(depth or 0) if cell.temperature == 0 else 10.0 - float(depth or 0)

    ngram: System = FakeSystem("vllm-ngram", deep_is_fast_if_greedy, (Setting(2), Setting(4)))
    run_pieces(make_pieces([ngram], FULL, results), results, None, lambda _: None)

    assert best_setting(ngram, ALONE, FULL, results) == Setting(4)
    assert best_setting(ngram, replace(ALONE, temperature=1.0), FULL, results) == Setting(2)


def test_the_rounds_do_not_change_what_the_search_found(results: Results) -> None:
    """Where both measure the same cell, too."""
    cell = PLAN.search.cells[0]
    plan = replace(PLAN, rounds=replace(PLAN.rounds, cells=(cell,)))
    deep: System = FakeSystem("vllm-ngram", deep_is_fast_alone, (Setting(2), Setting(4)))
    run_pieces(make_pieces([deep], plan, results), results, None, lambda _: None)
    results.add([measured("vllm-ngram", 1, Condition(cell, Setting(4)), 1.0)])

    assert best_setting(deep, cell, plan, results) == Setting(4)


def test_a_search_that_is_not_finished_chooses_nothing(
    systems: list[System], results: Results
) -> None:
    pieces = make_pieces([systems[1]], PLAN, results)
    next(pieces).measure(lambda _: None)

    assert best_setting(systems[1], ALONE, PLAN, results) is None
    assert list(pieces)[1:] == []  # but for the other depth's search


def test_systems_take_turns_in_rounds(results: Results) -> None:
    order: list[str] = []

    def make(name: str) -> FakeSystem:
        return FakeSystem(name, lambda _cell, _depth: float(order.append(name) or 1))

    run_pieces(make_pieces([make("a"), make("b")], FULL, results), results, None, lambda _: None)

    turns = [name for i, name in enumerate(order) if i % len(FULL.rounds.cells) == 0]
    assert turns == ["a", "b", "b", "a", "a", "b"]


def test_figures_are_means_over_workloads_and_ratios_to_the_baseline(
    systems: list[System], results: Results
) -> None:
    run_pieces(make_pieces(systems, FULL, results), results, None, lambda _: None)

    found = {(f.system, f.concurrency, f.temperature): f for f in summarise(systems, results)}

    assert len(found) == 4 + 4 + 2
    best = found["vllm-ngram", 1, 1.0]
    assert (best.setting, best.num_rounds) == (Setting(4), 3)
    assert best.tokens_per_s == pytest.approx(40.0)
    assert best.ratio == pytest.approx(2.0)
    assert found["hf", 1, 0.0].ratio == pytest.approx(0.5)
    assert found["vllm", 8, 0.0].ratio == pytest.approx(1.0)


def test_means_are_geometric_and_medians_are_over_rounds(results: Results) -> None:
    factors = dict(zip(WORKLOADS, (1.0, 2.0, 4.0), strict=True))
    speeds = iter([1.0] * 12 + [5.0] * 12 + [3.0] * 12)
    system: System = FakeSystem("vllm", lambda cell, _depth: factors[cell.workload] * next(speeds))
    run_pieces(make_pieces([system], FULL, results), results, None, lambda _: None)

    assert {round(f.tokens_per_s, 6) for f in summarise([system], results)} == {6.0}


def test_the_table_has_a_line_per_system_and_says_who_failed(
    systems: list[System], results: Results
) -> None:
    run_pieces(make_pieces(systems[:2], PLAN, results), results, None, lambda _: None)
    results.fail("hf", "no memory\nlog")

    table = format_markdown(systems, results).splitlines()

    assert table[0] == "| system | measured through | T=0, 1 at once | T=0, 8 at once |"
    assert table[2] == "| vllm | HTTP | 20.0 (1.00) | 100.0 (1.00) |"
    assert table[3] == "| vllm-ngram | HTTP | 40.0 (2.00), depth 4 | 50.0 (0.50), depth 2 |"
    assert table[4].startswith("| hf (failed: no memory) |")


def test_without_the_baseline_there_is_no_ratio(systems: list[System], results: Results) -> None:
    run_pieces(make_pieces(systems[2:], PLAN, results), results, None, lambda _: None)

    assert format_markdown(systems, results).splitlines()[2] == "| hf | HTTP | 10.0 |"


class OnCpu:
    is_on_cpu = True


class OnGpu:
    is_on_cpu = False


def test_vllm_may_have_all_cores_or_leave_one_to_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu: Any = OnCpu()
    gpu: Any = OnGpu()
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})

    assert make_settings(cpu, (None,)) == (Setting(None, 1), Setting(None, 2))
    assert make_settings(cpu, (2, 5)) == (
        Setting(2, 1),
        Setting(2, 2),
        Setting(5, 1),
        Setting(5, 2),
    )
    assert make_settings(gpu, (2, 5)) == (Setting(2), Setting(5))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    assert make_settings(cpu, (None,)) == (Setting(None, 1),)
