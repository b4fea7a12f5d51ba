from dataclasses import replace

import pytest

from specray.simulate.arrivals import Arrival
from specray.simulate.cluster import DraftReport, simulate
from specray.simulate.draft import QueueWait, Work
from specray.simulate.summary import percentiles, summarise
from tests.simulate.scenarios import STEP_S, alone, cluster, requests


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


def test_a_draft_is_not_called_busy_for_what_it_did_before_counting_began() -> None:
    run = simulate(cluster(draft_s=0.2 * STEP_S, depth=3), alone(400), until_s=1000.0)
    ended_s = run.requests[0].finished_s
    assert ended_s is not None
    working, idle = summarise(run, 0.0, ended_s), summarise(run, ended_s, 1000.0)

    assert working.draft_busy > 0.2
    assert working.draft_queue_s.p50 is not None
    assert idle.draft_busy < 1e-3
    assert idle.draft_queue_s.p50 is None


def test_work_counts_as_far_as_it_falls_into_the_time_that_does() -> None:
    draft = DraftReport((Work(1.0, 2.0), Work(4.0, 1.0)), 0, (QueueWait(2.0, 7.0),))

    assert [draft.busy_s(from_s, from_s + 1.5) for from_s in (0.0, 1.0, 2.5)] == [0.5, 1.5, 0.5]
    assert (draft.busy_s(), draft.queue_s()) == (3.0, [7.0])


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
