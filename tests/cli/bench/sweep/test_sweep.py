import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specray.cli import USER_ERROR, main
from specray.cli.bench.client import Endpoint
from specray.cli.bench.sweep.counters import Counters, parse
from specray.cli.bench.sweep.open_loop import Answer
from specray.cli.bench.sweep.plan import (
    SYSTEMS,
    Load,
    SweepPlan,
    live_settings,
    make_sweep,
    narrowed,
)
from specray.cli.bench.sweep.plots import draw
from specray.cli.bench.sweep.report import format_sweep, write_sweep
from specray.cli.bench.sweep.runner import Cell, Moment, finished, sweep
from specray.cli.bench.sweep.stats import compare, ratio, rows, throughput, verdicts
from specray.config import LivePolicyConfig
from tests.cli.fake_openai import FakeOpenAI, run_virtual

PLAN = SweepPlan((Load("1", 1.0, 4), Load("burst of 3", 0.0, 3)), 2, 12, settle_s=2.0)
META = {"machine": "a machine", "commit": "abc", "date": "2026-11-21T00:00:00"}


class FakeService:
    """Becomes what it is told; its counters grow with every look."""

    metrics_url = "http://fake/metrics"

    def __init__(self, fake: FakeOpenAI) -> None:
        self.became: list[str] = []
        self._fake = fake
        self._looks = 0

    def become(self, system: str) -> None:
        assert self._fake.num_open == 0  # no answer is in flight
        self.became.append(system)
        depth = int(system[6:]) if system.startswith("depth") else 2
        self._fake.tokens_on = depth + 1

    def show(self, request: httpx.Request) -> httpx.Response:
        self._looks += 1
        return httpx.Response(
            200, text=exposition(6 * self._looks, 3 * self._looks, 2 * self._looks)
        )


def exposition(proposed: float, accepted: float, steps: float) -> str:
    labels = '{application="a",replica="r",source="prompt_lookup"}'
    return (
        "# HELP ray_specray_proposed_tokens_total Draft tokens verified.\n"
        f"ray_specray_proposed_tokens_total{labels} {proposed}\n"
        f"ray_specray_accepted_tokens_total{labels} {accepted}\n"
        f"ray_specray_request_steps_total{labels} {steps}\n"
        f'ray_specray_proposed_tokens_at_position_total{{position="1"}} 99\n'
    )


def measure(plan: SweepPlan) -> tuple[list[Cell], FakeService, FakeOpenAI]:
    fake = FakeOpenAI()
    service = FakeService(fake)

    async def work() -> list[Cell]:
        endpoint = Endpoint("http://fake", fake)
        metrics = httpx.AsyncClient(transport=httpx.MockTransport(service.show))
        try:
            return [cell async for cell in sweep(endpoint, metrics, service, plan)]
        finally:
            await endpoint.close()
            await metrics.aclose()

    return run_virtual(work()), service, fake


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return measure(PLAN)[0]


def test_every_system_meets_every_load_in_every_round(cells: list[Cell]) -> None:
    seen = [(cell.round_index, cell.load, cell.system) for cell in cells]

    assert len(set(seen)) == len(seen) == 2 * 2 * len(SYSTEMS)
    assert len({system for _, _, system in seen[:: len(SYSTEMS)]}) > 1  # nobody is always first


def test_all_systems_are_asked_the_same_at_the_same_times() -> None:
    found, service, fake = measure(PLAN)
    bodies = fake.bodies[-len(SYSTEMS) * 2 * (4 + 3) :]  # without those that warm up
    asked = [(body["messages"][0]["content"], body["max_tokens"]) for body in bodies]

    assert asked[:4] == asked[4:8] == asked[24:28]
    assert len({prompt for prompt, _ in asked[:4]}) == 4
    for index in (0, 1):
        times = {tuple(a.asked_s for a in c.answers) for c in found if c.round_index == index}
        assert len(times) == 2  # one for each load
    assert all(body["ignore_eos"] for body in bodies)  # lengths are the load's
    switched_off = [body for body in bodies if "vllm_xargs" in body]
    assert len(switched_off) == 2 * (4 + 3)
    assert service.became == [cell.system for cell in found]


def test_a_sweep_can_be_narrowed_to_loads_and_systems() -> None:
    plan = narrowed(PLAN, ["burst of 3"], ["depth 3"])
    found = measure(plan)[0]

    assert {cell.load for cell in found} == {"burst of 3"}
    assert {cell.system for cell in found} == {"off", "depth 3", "specray"}
    assert narrowed(PLAN, [], []) == PLAN


def test_without_fixed_depths_ours_is_compared_with_off_alone() -> None:
    plan = narrowed(PLAN, [], ["off"])
    found = measure(plan)[0]

    assert verdicts(plan, found) == []
    assert {entry.best_fixed for entry in compare(plan, found)} == {"off"}
    assert "burst of 3" in format_sweep(plan, found)


def test_what_is_timed_is_what_a_reader_sees(cells: list[Cell]) -> None:
    # The fake sends the role at once, then a chunk each 0.5 s: of 1 token when off.
    off = next(c for c in cells if c.system == "off" and c.load == "burst of 3")

    assert sorted(answer.num_tokens for answer in off.answers) == [3, 12, 21]
    for answer in off.answers:
        assert answer.ttft_s == pytest.approx(0.5)
        assert answer.tpot_s == pytest.approx(0.5)
        assert answer.tokens_per_s == pytest.approx(2.0)
    assert off.tokens_per_s == pytest.approx(36 / (21 * 0.5))


def test_counters_give_depth_and_acceptance_over_time(cells: list[Cell]) -> None:
    # Each look adds 6 proposed, 3 accepted and 2 steps.
    assert all(cell.depth == 3.0 and cell.acceptance_rate == 0.5 for cell in cells)
    slow = next(c for c in cells if c.system == "off" and c.load == "1")
    assert len(slow.moments) > 3
    assert {moment.depth for moment in slow.moments} == {3.0}
    times = [moment.at_s for moment in slow.moments]
    assert times == sorted(times)


def test_an_exposition_is_added_up_over_replicas() -> None:
    text = exposition(5, 2, 4) + exposition(1, 1, 1)

    assert parse(text, 1.0) == Counters(1.0, 6.0, 3.0, 5.0)
    assert parse("", 1.0).depth is None
    assert parse(exposition(0, 0, 4), 1.0).acceptance_rate is None


def test_poisson_arrivals_have_their_rate_and_differ_by_round() -> None:
    load = Load("2", 2.0, 50)
    gaps = [b - a for a, b in zip(load.arrivals_s(0), load.arrivals_s(0)[1:], strict=False)]

    assert load.arrivals_s(0)[0] == 0.0
    assert 45 / 2 < load.arrivals_s(0)[-1] <= 25.0
    assert min(gaps) < 0.1 < 1.0 < max(gaps)
    assert load.arrivals_s(0) == load.arrivals_s(0) != load.arrivals_s(1)
    assert Load("burst", 0.0, 3).arrivals_s(0) == [0.0] * 3


def test_answers_differ_in_length_around_their_mean() -> None:
    lengths = Load("2", 2.0, 49).lengths(0, 64)

    assert (min(lengths), max(lengths), sum(lengths)) == (16, 112, 49 * 64)
    assert sorted(lengths) == sorted(Load("2", 2.0, 49).lengths(1, 64))
    assert lengths != Load("2", 2.0, 49).lengths(1, 64) != sorted(lengths)


@pytest.mark.parametrize("is_quick", [True, False])
def test_another_number_of_rounds_changes_nothing_else(is_quick: bool) -> None:
    usual = make_sweep(is_quick=is_quick)
    assert make_sweep(is_quick=is_quick, num_rounds=7) == replace(usual, num_rounds=7)


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_plans_reach_from_quiet_to_overloaded(is_quick: bool) -> None:
    plan = make_sweep(is_quick=is_quick)
    rates = [load.qps for load in plan.loads]

    assert min(rate for rate in rates if rate) * plan.mean_tokens < 40  # tokens/s; it can do 120
    assert max(rates) * plan.mean_tokens > 200
    assert 0.0 in rates  # a burst
    cells = list(plan.cells())
    assert len(cells) == plan.num_rounds * len(plan.loads) * len(SYSTEMS)
    assert {cell[2] for cell in cells} == set(SYSTEMS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_controller_takes_every_systems_settings(system: str) -> None:
    live = LivePolicyConfig.model_validate(live_settings(system, 16))

    names = {"depth 5": "fixed", "table": "batch_size_table", "specray": "goodput"}
    assert live.depth_policy is not None
    assert live.depth_policy.name == names.get(system, live.depth_policy.name)


@pytest.mark.parametrize(
    ("max_num_seqs", "table"),
    [
        (256, [[1, 64, 3], [65, 101, 2], [102, 165, 1]]),  # vLLM's own
        (16, [[1, 4, 3], [5, 6, 2], [7, 10, 1]]),
        (1, [[1, 1, 3]]),
    ],
)
def test_vllms_table_is_stretched_to_the_services_places(
    max_num_seqs: int, table: list[list[int]]
) -> None:
    settings = live_settings("table", max_num_seqs)["depth_policy"]

    assert settings["table"] == table
    LivePolicyConfig.model_validate({"depth_policy": settings})


def cell(index: int, load: str, system: str, tokens_per_s: float) -> Cell:
    chunks = [(1.0, 1), (1.0 + 100 / tokens_per_s, 99)]
    answer = Answer(1.0, chunks)
    return Cell(index, load, system, (answer,), 2.0, 0.5, (Moment(0.5, 2.0, 0.5),))


SPEEDS = {"off": 10.0, "depth 1": 11.0, "depth 3": 12.0, "depth 5": 9.0, "depth 8": 8.0}
SPEEDS |= {"table": 12.0, "specray": 12.6}


def made_up() -> list[Cell]:
    """The machine is twice as fast in the second round; at load 2 depth 5 is best."""
    return [
        cell(i, load, s, factor * (20.0 if (load, s) == ("2", "depth 5") else v))
        for i, factor in enumerate((1.0, 2.0))
        for load in ("1", "2")
        for s, v in SPEEDS.items()
    ]


MADE_UP = SweepPlan((Load("1", 1.0, 1), Load("2", 2.0, 1)), 2, 100, settle_s=0.0)


def test_ratios_are_paired_by_round() -> None:
    found = ratio(made_up(), "1", "off", throughput)

    assert found.mean == pytest.approx(1.26)  # though both systems' speeds doubled
    assert found.low == pytest.approx(1.26)
    assert found.high == pytest.approx(1.26)


def test_an_interval_is_as_wide_as_rounds_differ() -> None:
    uneven = [cell(i, "1", "off", 10.0) for i in range(3)]
    uneven += [cell(i, "1", "specray", v) for i, v in enumerate((10.0, 11.0, 12.1))]
    found = ratio(uneven, "1", "off", throughput)
    spread = math.log(1.1) / math.sqrt(3) * 4.30  # deviation of (0, 1, 2) is 1; t of 2 degrees

    assert found.mean == pytest.approx(1.1)
    assert (found.low, found.high) == pytest.approx(
        (1.1 * math.exp(-spread), 1.1 * math.exp(spread))
    )


def test_the_best_fixed_choice_is_found_at_each_load() -> None:
    by_load = {c.load: c for c in compare(MADE_UP, made_up()) if c.measure == "throughput"}

    assert by_load["1"].best_fixed == "depth 3"
    assert by_load["1"].to_best_fixed.mean == pytest.approx(1.05)
    assert by_load["2"].best_fixed == "depth 5"
    assert by_load["2"].to_best_fixed.mean == pytest.approx(0.63)


def test_the_best_single_depth_is_that_over_all_loads() -> None:
    found = verdicts(MADE_UP, made_up())[0]

    assert found.best_single_depth == "depth 5"  # 9 and 20 against 12 and 12
    assert found.to_best_single_depth == pytest.approx(12.6 / math.sqrt(9 * 20))
    assert found.least_to_off == pytest.approx(1.26)
    assert found.least_to_best_fixed == pytest.approx(0.63)


def test_of_an_interrupted_sweep_whole_loads_are_kept() -> None:
    plan, kept = finished(MADE_UP, made_up()[: len(SPEEDS) + 3])

    assert [load.name for load in plan.loads] == ["1"]
    assert len(kept) == len(SPEEDS)
    assert finished(MADE_UP, made_up()) == (MADE_UP, made_up())
    assert finished(MADE_UP, made_up()[:3])[1] == []
    assert plan.num_rounds == 1 < MADE_UP.num_rounds
    assert ratio(kept, "1", "off", throughput).mean == pytest.approx(1.26)


def test_rows_are_medians_over_rounds() -> None:
    row = next(r for r in rows(MADE_UP, made_up()) if (r.load, r.system) == ("1", "off"))

    assert row.tokens_per_s == pytest.approx(15.0)
    assert row.depth == 2.0


def test_the_result_can_be_read_by_people_and_programs(cells: list[Cell], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sweep.json"
    write_sweep(path, META, PLAN, cells)
    content: dict[str, Any] = json.loads(path.read_text())
    text = format_sweep(PLAN, cells)

    assert len(content["rows"]) == 2 * len(SYSTEMS)
    assert len(content["cells"]) == 4 * len(SYSTEMS)
    assert content["cells"][0]["moments"][0]["depth"] == 3.0
    assert content["meta"]["commit"] == "abc"
    assert len(text.splitlines()) > 2 * len(SYSTEMS)
    assert "of the best single depth over the sweep" in text


def test_the_figure_has_titles_units_and_a_legend(cells: list[Cell], tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    draw(path, META, PLAN, cells)
    drawn = path.read_text(encoding="utf-8")

    for words in ("Throughput", "tokens/s", "Time to first token, p95", "depth over time", "table"):
        assert words in drawn


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sweep", "--url", "http://x"], "--sweep: changes the depth policy of the service"),
        (["--plot", "a.svg"], "--plot: draws a sweep; add --sweep"),
        (["--load", "8"], "--load: one of a sweep's; add --sweep"),
        (["--sweep", "--load", "7"], "--load: '7' is none of the sweep's: 0.25, 0.5, 1, 2, 4, 8,"),
        (["--sweep", "--only", "depth 2"], "--only: 'depth 2' is none of the sweep's: off, depth"),
        (["--sweep", "--minutes", "3"], "--minutes and --plots are for --peers and --network"),
        (["--sweep", "--plot", "a.txt"], "--plot: a.txt must end in one of"),
        (["--sweep", "--config", "nowhere.yaml"], "--config: nowhere.yaml"),
        (["--sweep", "--config", "pyproject.toml"], "--config: pyproject.toml"),
    ],
)
def test_a_faulty_option_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_without_a_file_the_local_service_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is none
    assert main(["bench", "--sweep"]) == USER_ERROR
    assert "--config: deployments/local.yaml" in capsys.readouterr().err
