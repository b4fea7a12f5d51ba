from dataclasses import replace

import pytest

from specray.simulate.arrivals import Arrival
from specray.simulate.cluster import simulate
from specray.simulate.summary import percentiles, summarise
from tests.simulate.scenarios import STEP_S, cluster, requests


def test_figures_of_a_run_that_is_known() -> None:
    # Two requests of 20 tokens, the second one second later: steps of 50 ms, alone mostly.
    run = simulate(cluster(is_enabled=False), requests([Arrival(0.0, 5, 20), Arrival(1.0, 5, 20)]))
    found = summarise(run)

    assert found.num_requests == 2
    assert found.tokens_per_s == pytest.approx(40 / run.ended_s)
    assert found.ttft_s.p50 == pytest.approx(STEP_S)
    assert found.mean_tpot_s == pytest.approx(STEP_S)
    assert found.mean_depth == found.acceptance_rate == found.waited == 0.0
    assert found.target_busy == pytest.approx(1.0, abs=0.01)
    assert found.keeps_up


def test_only_what_falls_into_the_window_counts() -> None:
    run = simulate(cluster(is_enabled=False), requests([Arrival(0.0, 5, 20), Arrival(2.0, 5, 20)]))
    found = summarise(run, from_s=1.52, until_s=2.52)

    assert found.num_requests == 0  # the second ends at 3 s
    assert found.tokens_per_s == pytest.approx(10 / 1.0)
    assert found.offered_tokens_per_s == pytest.approx(20.0)
    assert not found.keeps_up


@pytest.mark.parametrize(
    ("num_arrived", "tokens_per_s", "keeps_up"),
    [(10_000, 96, True), (10_000, 94, False), (100, 91, True), (100, 89, False), (4, 79, False)],
)
def test_few_requests_may_be_behind_by_chance(
    num_arrived: int, tokens_per_s: float, keeps_up: bool
) -> None:
    run = simulate(cluster(is_enabled=False), requests([Arrival(0.0, 5, 20)]))
    found = replace(summarise(run), num_arrived=num_arrived, offered_tokens_per_s=100.0)

    assert replace(found, tokens_per_s=tokens_per_s).keeps_up == keeps_up


def test_requests_of_one_token_have_no_time_per_token() -> None:
    run = simulate(cluster(is_enabled=False), requests([Arrival(0.0, 5, 1)]))

    assert summarise(run).mean_tpot_s is None
    assert summarise(run).tpot_s == percentiles([]) == (None, None, None)
