import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from specray.cli.bench import network
from specray.cli.bench.network import (
    Disaggregated,
    NetworkPiece,
    NetworkPlan,
    make_pieces,
    make_plan,
    make_systems,
    reload,
)
from specray.cli.bench.network_report import draw, format_markdown, summarise
from specray.cli.bench.peers import SystemPiece
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.results import Condition, Measurement, Results, Setting, measured
from specray.cli.bench.service import Running
from specray.cli.bench.systems import Speeds
from specray.config import SimulationConfig
from specray.errors import StartupError

CELLS = (Cell("mixed", 1, 0.0), Cell("mixed", 8, 0.0))
PLAN = NetworkPlan(
    Plan(CELLS, num_rounds=2, num_answers=1, ramp_s=1.0, window_s=6.0), (0.0, 5.0), (0.0, 0.6), (2,)
)


class FakeDeployment:
    max_depth = 5
    draft = "draft"
    is_on_cpu = True


PLAIN, AHEAD = (
    Disaggregated(name, FakeDeployment(), {}, has_stop_gap=name == "ahead")  # type: ignore[arg-type]
    for name in ("plain", "ahead")
)


def nothing() -> Results:
    return Results(None, "network", {})


def test_the_quick_plan_takes_half_an_hour() -> None:
    deployment: Any = FakeDeployment()
    plan = make_plan(is_quick=True)
    results = nothing()
    searched: set[str] = set()
    expected_s = 0.0
    for piece in make_pieces(make_systems(deployment, plan), plan, results):
        expected_s += piece.expected_s
        if isinstance(piece, SystemPiece):
            searched.add(piece.system)
            for cell in piece.cells:
                found = Condition(cell, piece.setting)
                results.add([measured(piece.system, piece.round_number, found, 1.0)])
    assert searched == {"vllm-draft", "vllm-ngram"}
    assert expected_s < 1800
    assert make_plan(is_quick=False).rtts_ms == (0.0, 1.0, 5.0, 20.0)


def test_each_of_ours_has_what_its_name_says() -> None:
    deployment: Any = FakeDeployment()
    ours = [
        system
        for system in make_systems(deployment, make_plan(is_quick=True))
        if isinstance(system, Disaggregated)
    ]
    found = {
        system.name: (
            system.args["speculation"]["stop_gap"],
            system.args["draft"]["model"].get("fan_out"),
        )
        for system in ours
    }
    assert found == {
        "plain": (False, 0),
        "copies": (True, 0),
        "ahead-alone": (False, None),
        "ahead": (True, None),
    }


def test_no_round_trip_is_always_the_first() -> None:
    plan = make_plan(is_quick=True)

    assert [plan.rtts_ms_of(number)[0] for number in (1, 2, 3, 4)] == [0.0, 5.0, 20.0, 0.0]
    assert set(plan.rtts_ms_of(3)) == set(plan.rtts_ms)


def test_other_temperatures_replace_the_plans() -> None:
    cells = make_plan(is_quick=False, temperatures=[1.0]).rounds.cells
    assert set(cells) == {c for c in make_plan(is_quick=False).rounds.cells if c.temperature == 1.0}


@pytest.mark.parametrize("is_quick", [True, False])
def test_another_number_of_rounds_changes_nothing_else(is_quick: bool) -> None:
    usual = make_plan(is_quick=is_quick).rounds
    assert make_plan(is_quick=is_quick, num_rounds=7).rounds == replace(usual, num_rounds=7)


def test_every_piece_of_the_full_plan_takes_less_than_eight_minutes() -> None:
    plan = make_plan(is_quick=False)
    assert {cell.concurrency for cell in plan.rounds.cells} == {1, 4, 8}
    assert all(piece.expected_s < 480 for piece in make_pieces([PLAIN, AHEAD], plan, nothing()))


def test_systems_take_turns() -> None:
    pieces = list(make_pieces([PLAIN, AHEAD], PLAN, nothing()))

    assert [piece.title for piece in pieces] == [
        "plain: round 1",
        "plain: round 1, a proposal takes 60% of a step",
        "ahead: round 1",
        "ahead: round 1, a proposal takes 60% of a step",
        "ahead: round 2",
        "ahead: round 2, a proposal takes 60% of a step",
        "plain: round 2",
        "plain: round 2, a proposal takes 60% of a step",
    ]


@dataclass
class FakeService:
    """Answers slower with each millisecond that is simulated; deaf to real ones."""

    args: Any
    simulation: SimulationConfig = field(default_factory=SimulationConfig)

    @contextmanager
    def run(self) -> Iterator["FakeService"]:
        yield self

    url = "http://fake"


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[FakeService]:
    made: list[FakeService] = []

    def make(_deployment: object, args: object) -> FakeService:
        made.append(FakeService(args))
        return made[-1]

    def take_over(_running: object, service: FakeService, simulation: SimulationConfig) -> None:
        service.simulation = simulation

    async def speeds(
        _url: str, cells: tuple[Cell, ...], *_args: object, max_depth: int | None, is_warm: bool
    ) -> Speeds:
        now = made[-1].simulation
        if max_depth == 0:
            return dict.fromkeys(cells, 20.0)  # a step of 50 ms
        return dict.fromkeys(cells, 40.0 - now.rtt_ms - now.pass_ms)

    monkeypatch.setattr(network, "Service", make)
    monkeypatch.setattr(network, "reload", take_over)
    monkeypatch.setattr(network, "measure_cells", speeds)
    monkeypatch.setattr(network, "_settle", lambda _url: asyncio.sleep(0))
    return made


def measure(piece: NetworkPiece, results: Results) -> None:
    results.add(piece.measure(lambda _: None))


def test_a_piece_measures_off_and_then_each_round_trip(services: list[FakeService]) -> None:
    results = nothing()
    piece = NetworkPiece(PLAIN, 1, 0.6, PLAN)

    assert not piece.is_done(results)
    measure(piece, results)

    assert piece.is_done(results)
    assert not NetworkPiece(PLAIN, 1, 0.0, PLAN).is_done(results)
    assert not NetworkPiece(PLAIN, 2, 0.6, PLAN).is_done(results)
    assert len(services) == 1
    assert services[0].args["draft"]["simulation"] == {}
    # 60 % of 50 ms, over five passes.
    assert results.speeds("plain", Condition(CELLS[0], Setting(), 0.0, 0.6)) == {1: 40.0 - 6.0}
    assert results.speeds("plain", Condition(CELLS[1], Setting(), 5.0, 0.6)) == {
        1: 40.0 - 5.0 - 6.0
    }
    assert results.speeds("plain:off", Condition(CELLS[0], Setting(), 0.0, 0.6)) == {1: 20.0}


def make_results() -> Results:
    results = nothing()
    for rtt_ms in (0.0, 5.0):
        for name, off, speed in (("plain", 20.0, 25.0 - rtt_ms), ("ahead", 10.0, 20.0 - rtt_ms)):
            condition = Condition(CELLS[0], Setting(), rtt_ms, 0.6)
            results.add([measured(name, 1, condition, speed)])
            if rtt_ms == 0:
                results.add([measured(f"{name}:off", 1, condition, off)])
    results.add([Measurement("vllm-ngram", 1, Condition(CELLS[0], Setting(3)), 23.0, "")])
    results.fail("vllm-draft", "no weights\nlog")
    return results


def test_the_table_sets_ahead_against_plain_each_against_its_own_off() -> None:
    lines = format_markdown(make_results()).splitlines()

    assert lines[2:4] == [
        # (20 / 10) / (25 / 20)
        "| 1 | 0 | 60% of a step | 0 ms | 15.0 | 25.0 |  |  | 20.0 | 1.60 |  |  |  | 23.0 |",
        "| 1 | 0 | 60% of a step | 5 ms | 15.0 | 20.0 |  |  | 15.0 | 1.50 |  |  |  | 23.0 |",
    ]
    assert lines[4].startswith("| vllm-draft failed: no weights |")


def test_the_search_for_vllms_settings_is_no_round() -> None:
    results = make_results()
    results.add([measured("vllm-ngram", 0, Condition(CELLS[0], Setting(3)), 99.0)])

    assert summarise(results)[0].tokens_per_s["vllm-ngram"] == 23.0


def test_the_table_says_between_what_the_rounds_lie() -> None:
    results = make_results()
    condition = Condition(CELLS[0], Setting(), 0.0, 0.6)
    for name, off, speed in (("plain", 20.0, 20.0), ("ahead", 10.0, 20.0)):
        results.add(
            [measured(name, 2, condition, speed), measured(f"{name}:off", 2, condition, off)]
        )

    assert "| 1.80 (1.60 to 2.00) |" in format_markdown(results)
    assert summarise(results)[0].ratios["plain"] == [1.6, 2.0]


def test_curves_are_drawn_for_each_slowness(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = draw(make_results(), tmp_path / "plots")

    assert [path.name for path in paths] == ["network-draft-60.svg", "network-draft-60.png"]
    assert all(path.stat().st_size > 5000 for path in paths)
    assert paths[0].read_text().startswith("<?xml")


SERVICE = """
import pathlib, signal, sys
config, log = map(pathlib.Path, sys.argv[1:])
def take_over(*_):
    log.write_text("simulated: a round trip of 5 ms, passes of 6 ms\\n")
signal.signal(signal.SIGHUP, take_over)
print(f"logs: {log.parent}", flush=True)
while True:
    signal.pause()
"""


@dataclass
class FakeFile:
    written: list[Any] = field(default_factory=list)

    def write(self, live_draft: Any) -> None:
        self.written.append(live_draft)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    processes = []

    def start(log: str) -> Running:
        said = tmp_path / "said.txt"
        command = [sys.executable, "-c", SERVICE, str(tmp_path), str(tmp_path / log)]
        with said.open("w") as out:
            process = subprocess.Popen(command, stdout=out)
        processes.append(process)
        while not said.read_text().endswith("\n"):
            assert process.poll() is None
        return Running("http://fake", process, said)

    yield start
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_simulation_is_in_force_when_the_draft_says_so(
    running: Callable[[str], Running],
) -> None:
    file: Any = FakeFile()

    reload(running("replica_draft_1.log"), file, SimulationConfig(rtt_ms=5.0, pass_ms=6.0))

    assert file.written == [{"simulation": {"rtt_ms": 5.0, "pass_ms": 6.0}}]


def test_a_draft_that_says_nothing_is_reported(
    running: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_RELOAD_TIMEOUT_S", 0.5)
    file: Any = FakeFile()
    with pytest.raises(StartupError, match="round trip of 1 ms"):
        reload(running("replica_draft_1.log"), file, SimulationConfig(rtt_ms=1.0))
