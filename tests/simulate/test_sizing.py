import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from specray.control.hardware import named_profile
from specray.control.roofline import ModelShape, Roofline
from specray.simulate.agreement import ByPlace
from specray.simulate.arrivals import Arrival, Lengths
from specray.simulate.cluster import ClusterSettings
from specray.simulate.draft import DraftSettings
from specray.simulate.network import NetworkSettings
from specray.simulate.sizing import (
    Outcome,
    Prices,
    Scenario,
    Trial,
    advise,
    capacity,
    recorded_qps,
    run_trial,
    speedup,
    trials,
)
from specray.simulate.target import TargetSettings
from specray.types import SpeculationPolicy

H100 = named_profile("H100")
TARGET = Roofline(ModelShape(70e9, 140e9, 327_680, 80, 8192), H100, 4, 0.0005, 0.8)
DRAFT = Roofline(ModelShape(1.2e9, 2.4e9, 32_768, 16, 2048), H100, 1, 0.0005, 0.8)
SCENARIO = Scenario(
    ClusterSettings(
        TargetSettings(TARGET, SpeculationPolicy()),
        DraftSettings(DRAFT),
        network=NetworkSettings(0.0002),
    ),
    gpus_per_target=4,
    gpus_per_draft=1,
    lengths=Lengths(200, 60),
    agreement=ByPlace((0.8,)),
    prices=Prices(2.0, 1.0),
    seconds=6.0,
)


def outcomes(scenario: Scenario, qps: float) -> list[Outcome]:
    return [run_trial(scenario, trial) for trial in trials([qps], [1], [3])]


def test_a_good_draft_pays_at_low_load() -> None:
    found = outcomes(SCENARIO, 1.0)
    advice = advise(found)[0]

    assert advice.num_drafts == 1
    assert 1.5 < advice.speedup < 3.0
    assert advice.best_fixed_depth == 3
    assert 2 < advice.depth <= 5
    assert advice.reason == "on"


def test_a_bad_draft_is_left_off_and_costs_nothing() -> None:
    found = outcomes(replace(SCENARIO, agreement=ByPlace((0.05,))), 1.0)
    advice = advise(found)[0]

    assert (advice.num_drafts, advice.speedup, advice.depth) == (0, 1.0, 0.0)
    assert advice.usd_per_million == advice.usd_per_million_off
    assert advice.reason.startswith("off: ")


def test_the_price_is_that_of_all_gpus() -> None:
    off, ours, _ = outcomes(SCENARIO, 1.0)

    for outcome, usd_per_hour in ((off, 8.0), (ours, 9.0)):
        per_hour = outcome.summary.tokens_per_s * 3600
        assert outcome.usd_per_million == pytest.approx(usd_per_hour / per_hour * 1e6)


def test_the_advice_takes_the_smallest_pool_that_is_as_fast() -> None:
    found = [run_trial(SCENARIO, trial) for trial in trials([1.0], [1, 4], [])]

    assert advise(found)[0].num_drafts == 1
    assert advise(found)[0].best_fixed_depth is None


@pytest.mark.parametrize("pattern", ["poisson", "bursty", "diurnal"])
def test_whatever_the_pattern_what_counts_is_the_load_that_was_asked_for(pattern: Any) -> None:
    found = run_trial(replace(SCENARIO, pattern=pattern, seconds=40.0), Trial(8.0, "off"))

    assert found.seconds == pytest.approx(50.0 if pattern == "bursty" else 40.0)  # whole periods
    # Three deviations of some 350 requests.
    assert found.summary.offered_tokens_per_s == pytest.approx(8.0 * 60, rel=0.16)


def replayed(*arrivals: Arrival, **changes: Any) -> Outcome:
    """A recording of answers of some 60 tokens, one second each, without speculation."""
    scenario = replace(SCENARIO, replayed=arrivals, seconds=None, **changes)
    return run_trial(scenario, Trial(recorded_qps(scenario), "off"))


def test_a_replay_replaces_the_pattern() -> None:
    arrivals = tuple(Arrival(0.1 * n, 20, 10) for n in range(5))
    found = run_trial(replace(SCENARIO, replayed=arrivals, seconds=3.0), Trial(10.0, "off"))

    assert found.seconds == pytest.approx(3.0)
    assert found.summary.offered_tokens_per_s == pytest.approx(100.0)
    assert found.summary.keeps_up


def test_a_recording_tells_its_load_unless_it_is_too_short() -> None:
    regular = tuple(Arrival(7.0 + 0.5 * n, 200, 60) for n in range(20))
    at_once = tuple(Arrival(0.0, 200, 60) for _ in range(20))
    life_s = 60 / 66  # at 66 tokens a second

    assert recorded_qps(replace(SCENARIO, replayed=regular)) == pytest.approx(2.0)
    assert recorded_qps(replace(SCENARIO, replayed=at_once)) == pytest.approx(20 / life_s, rel=0.1)


def test_a_short_recording_of_long_answers_is_not_too_much() -> None:
    found = replayed(*(Arrival(0.5 * n, 20, 300) for n in range(6)), lengths=Lengths(20, 300))

    assert found.summary.keeps_up


def test_a_long_answer_does_not_make_an_overload_seem_to_keep_up() -> None:
    target = replace(SCENARIO.cluster.target, max_num_seqs=4)  # some 4 requests a second
    cluster = replace(SCENARIO.cluster, target=target)
    arrivals = [Arrival(n / 12, 200, 60) for n in range(60)]
    found = replayed(*arrivals, Arrival(5.0, 200, 1000), cluster=cluster)

    assert not found.summary.keeps_up
    assert found.summary.target_busy == pytest.approx(1.0, abs=0.01)


def test_the_time_of_a_long_answer_is_not_charged_to_the_recording() -> None:
    arrivals = [Arrival(0.5 * n, 200, 60) for n in range(20)]
    found = replayed(*arrivals, Arrival(10.0, 200, 1000))

    assert found.summary.keeps_up
    assert found.summary.tokens_per_s == pytest.approx((20 * 60 + 1000) / 10.5, rel=0.05)


def test_one_that_slows_down_as_it_fills_keeps_up_all_the_same() -> None:
    """With a mixture's steps, many times as long for many requests as for one."""
    shape = ModelShape(20e9, 400e9, 300_000, 80, 8192, expert_bytes=390e9, idle_share=0.97)
    target = TargetSettings(Roofline(shape, H100, 4, 0.0005, 0.8), SpeculationPolicy())
    scenario = replace(SCENARIO, cluster=replace(SCENARIO.cluster, target=target), seconds=None)
    few, some = (run_trial(scenario, Trial(qps, "off")).summary for qps in (0.2, 20.0))

    assert few.mean_tpot_s is not None
    assert some.mean_tpot_s is not None
    assert some.mean_tpot_s > 4 * few.mean_tpot_s
    assert some.keeps_up


def test_trials_can_be_told_apart_by_load_alone() -> None:
    slow = run_trial(SCENARIO, Trial(1.0, "off"))
    full = run_trial(replace(SCENARIO, seconds=2.0), Trial(400.0, "off"))

    assert slow.summary.keeps_up
    assert not full.summary.keeps_up
    assert capacity([slow, full], Trial(0.0, "off"), None) == 1.0
    assert capacity([slow, full], Trial(0.0, "off"), 1e-6) is None
    assert capacity([slow, full], Trial(0.0, "specray", 1), None) is None


def test_the_speed_up_is_of_tokens_per_second_where_one_can_not_keep_up() -> None:
    slow = run_trial(SCENARIO, Trial(1.0, "off")).summary
    busy = replace(slow, offered_tokens_per_s=100.0, num_arrived=1000)
    full, faster = replace(busy, tokens_per_s=50.0), replace(busy, tokens_per_s=90.0)

    assert speedup(full, faster) == pytest.approx(1.8)
    assert slow.mean_tpot_s is not None
    assert speedup(slow, replace(slow, mean_tpot_s=slow.mean_tpot_s / 2)) == pytest.approx(2.0)


def test_equal_seeds_equal_outcomes() -> None:
    trial = Trial(2.0, "specray", 1)

    assert run_trial(SCENARIO, trial) == run_trial(SCENARIO, trial)
    assert run_trial(SCENARIO, trial) != run_trial(replace(SCENARIO, seed=1), trial)


def test_a_plan_imports_no_pytorch() -> None:
    """It takes seconds, and each of a plan's processes would import it anew."""
    code = "import sys, specray.simulate.sizing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
