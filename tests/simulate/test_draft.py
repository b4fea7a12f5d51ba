from dataclasses import replace

import pytest

from specray.control.roofline import StepLoad
from specray.simulate.agreement import ByPlace
from specray.simulate.arrivals import Arrival
from specray.simulate.cluster import Run, simulate
from specray.simulate.draft import DraftSettings
from tests.simulate.scenarios import alone, cluster, requests

DRAFT_S = 0.001


class Prefills:
    """Drafting costs nothing, and a prompt's token a tenth of a millisecond."""

    def step_s(self, load: StepLoad) -> float:
        return 1e-4 * load.num_tokens if load.num_tokens > 64 else 0.0


def num_verifications(run: Run) -> int:
    return sum(step.num_proposed > 0 for step in run.steps[0])


def test_a_draft_is_busy_for_each_token_of_a_chain() -> None:
    run = simulate(cluster(depth=3, draft_s=DRAFT_S), alone(61))

    # 60 tokens after the prefill's, 4 a step: the last proposals end with the answer.
    assert run.drafts[0].num_drafted == 3 * len(run.drafts[0].waits)
    prefill_s = DRAFT_S
    assert run.drafts[0].busy_s() == pytest.approx(prefill_s + DRAFT_S * run.drafts[0].num_drafted)


def test_a_session_is_drafted_for_when_its_prompt_is_prefilled() -> None:
    settings = replace(cluster(depth=3), draft=DraftSettings(Prefills()))
    short = simulate(settings, requests([Arrival(0.0, 100, 80)], ByPlace((1.0,))))
    long = simulate(settings, requests([Arrival(0.0, 8000, 80)], ByPlace((1.0,))))

    # 0.8 s of prefill are sixteen steps of 50 ms, one of them the target's own prefill.
    assert short.steps[0][1].num_proposed == 3
    first = next(n for n, step in enumerate(long.steps[0]) if step.num_proposed)
    assert 15 <= first <= 17


def test_each_piece_of_a_prompt_has_to_be_launched() -> None:
    def busy_s(num_prompt_tokens: int, prefill_overhead_s: float) -> float:
        draft = DraftSettings(Prefills(), prefill_overhead_s=prefill_overhead_s)
        settings = replace(cluster(depth=3), draft=draft)
        run = simulate(settings, requests([Arrival(0.0, num_prompt_tokens, 80)], ByPlace((1.0,))))
        return run.drafts[0].busy_s()

    assert busy_s(1100, 0.25) - busy_s(1100, 0.0) == pytest.approx(3 * 0.25)  # 512, 512, 76


def test_one_prompt_does_not_hold_up_the_proposals_of_others() -> None:
    settings = replace(cluster(depth=3), draft=DraftSettings(Prefills()))
    arrivals = [Arrival(0.0, 100, 80), Arrival(0.5, 8000, 2)]
    run = simulate(settings, requests(arrivals, ByPlace((1.0,))))

    # A piece of 512 tokens takes 51 ms; the whole prompt 800.
    assert max(run.drafts[0].queue_s()) < 0.06


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_so_many_commits_are_drafted_ahead(rate: float) -> None:
    run = simulate(cluster(depth=3, draft_s=DRAFT_S, ahead=rate), alone(4000, rate=0.6))

    # Of what was not foreseen the target leaves some, if the wait for it does not pay.
    asked = len(run.drafts[0].waits) / num_verifications(run)
    assert 1 - rate - 0.12 < asked < 1 - rate + 0.06


def test_sessions_are_shared_evenly_among_drafts() -> None:
    settings = cluster(depth=3, draft_s=DRAFT_S, num_drafts=4)
    run = simulate(settings, requests([Arrival(0.0, 10, 40)] * 8, ByPlace((0.8,))))
    drafted = [draft.num_drafted for draft in run.drafts]

    assert min(drafted) > 0.6 * max(drafted)
