from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from specray.control.roofline import StepLoad
from specray.simulate.agreement import ByPlace
from specray.simulate.arrivals import Arrival, Lengths, Poisson, draw_arrivals
from specray.simulate.cluster import Run, simulate
from specray.simulate.draft import DraftSettings
from specray.simulate.step_laws import ConstantSteps
from specray.simulate.summary import summarise
from tests.simulate.scenarios import STEP_S, alone, cluster, requests

BUSY = draw_arrivals(Poisson(4.0), Lengths(50, 20, 0.5), 8.0, seed=3)


class Gpus(NamedTuple):
    """Bound by memory up to some tokens, by arithmetic beyond."""

    fixed_s: float
    memory_token_s: float
    compute_token_s: float

    def step_s(self, load: StepLoad) -> float:
        memory_s = self.fixed_s + self.memory_token_s * load.num_tokens
        return max(memory_s, self.compute_token_s * load.num_tokens)


LARGE = Gpus(0.026, 2e-5, 8.5e-5)  # about a 405B's on eight H100, and an 8B's on one
SMALL = Gpus(0.008, 1e-5, 2e-5)


def depths(run: Run) -> list[int]:
    return [step.num_proposed for target in run.steps for step in target]


def test_without_speculation_a_request_takes_a_step_for_each_token() -> None:
    run = simulate(cluster(is_enabled=False), alone(40))

    assert run.requests[0].first_token_s == pytest.approx(STEP_S)
    assert run.requests[0].finished_s == pytest.approx(40 * STEP_S)
    assert depths(run) == [0] * 40


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_perfect_draft_at_a_fixed_depth_saves_as_many_steps_as_it_must(depth: int) -> None:
    # The prefill brings the first token; then each step commits depth + 1 of the other 60.
    run = simulate(cluster(depth=depth), alone(61))

    assert len(run.steps[0]) == 1 + 60 // (depth + 1)
    assert run.requests[0].num_answered == 61


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_tokens_per_step_follow_the_formula_of_the_literature(depth: int) -> None:
    # (1 - a^(d + 1)) / (1 - a): Leviathan et al., arXiv 2211.17192.
    run = simulate(cluster(depth=depth), alone(2000, rate=0.7))

    expected = (1 - 0.7 ** (depth + 1)) / 0.3
    assert summarise(run).tokens_per_step == pytest.approx(expected, rel=0.04)


def test_a_useless_draft_costs_next_to_nothing() -> None:
    off = simulate(cluster(is_enabled=False), alone(800))
    on = simulate(cluster(draft_s=0.002), alone(800, rate=0.0))

    assert on.ended_s <= off.ended_s * 1.02
    assert sum(depths(on)[100:]) < 0.1 * 700


def test_what_draft_tokens_take_beside_a_step_is_paid_and_learnt_from() -> None:
    free = simulate(cluster(depth=3), alone(61))
    dear = simulate(cluster(depth=3, verify_overhead_s=0.01), alone(61))
    assert dear.ended_s - free.ended_s == pytest.approx(15 * 0.01)  # of each step that decodes

    # 0.4 + 0.4² + ... tokens more are not worth four steps, of which step times say nothing.
    free = simulate(cluster(), alone(400, rate=0.4))
    too_dear = simulate(cluster(verify_overhead_s=4 * STEP_S), alone(400, rate=0.4))
    assert sum(depths(too_dear)) < 0.2 * sum(depths(free))


def test_a_target_does_not_copy_what_is_only_simulated() -> None:
    # Which is one and the same token over and over, so that a copy would always be right.
    settings = cluster(draft_s=0.002)
    policy = replace(settings.target.policy, has_stop_gap=True)
    copying = replace(settings, target=replace(settings.target, policy=policy))
    runs = [simulate(each, alone(200, rate=0.0)) for each in (settings, copying)]

    assert runs[1].ended_s == runs[0].ended_s
    assert sum(step.num_accepted for step in runs[1].steps[0]) == 0


def test_waiting_for_a_draft_costs_what_it_takes_and_drafting_ahead_does_not() -> None:
    at_once = simulate(cluster(depth=3), alone(61))
    waiting = simulate(cluster(depth=3, draft_s=0.003, delay_s=0.0005), alone(61))
    ahead = simulate(cluster(depth=3, draft_s=0.003, delay_s=0.0005, ahead=1.0), alone(61))

    num_decode = 15
    # Three draft steps and two ways for each decode step, here of 0.5 ms and there of 0.2.
    assert waiting.ended_s - at_once.ended_s == pytest.approx(num_decode * 0.0096, abs=1e-4)
    # The first proposal can't have been drafted ahead.
    assert ahead.ended_s - waiting.ended_s == pytest.approx(-(num_decode - 1) * 0.010, abs=1e-4)


@pytest.mark.parametrize("ahead", [0.0, 0.5])
@pytest.mark.parametrize("draft_s", [0.006, 0.012, 0.020])
def test_a_slow_draft_is_asked_for_as_much_as_is_worth_the_wait(
    draft_s: float, ahead: float
) -> None:
    # Depth 3 of 12 ms each fits the wait of 45 ms, and depth 5 does not; 6 ms and 20 ms: all, two.
    def ended_s(depth: int | None) -> float:
        settings = cluster(depth=depth, draft_s=draft_s, ahead=ahead)
        policy = replace(settings.target.policy, max_wait_ms=45.0)
        settings = replace(settings, target=replace(settings.target, policy=policy))
        return simulate(settings, alone(1500, rate=0.75)).ended_s

    assert ended_s(None) < 1.06 * min(ended_s(depth) for depth in (1, 2, 3, 5))


@pytest.mark.parametrize("num_at_once", [8, 24, 48])
def test_under_load_a_draft_that_answers_within_a_step_is_worth_the_best_fixed_depth(
    num_at_once: int,
) -> None:
    """It may be waited for or come just behind the step, and both ways take turns."""

    def tokens_per_s(depth: int | None, *, is_enabled: bool = True) -> float:
        settings = cluster(depth=depth, is_enabled=is_enabled, law=LARGE)
        policy = replace(settings.target.policy, max_wait_ms=25.0)
        settings = replace(
            settings,
            target=replace(settings.target, policy=policy),
            draft=DraftSettings(SMALL, prefill_overhead_s=0.0055),
        )
        load = requests([Arrival(0.0, 1000, 100 + i % 100) for i in range(8 * num_at_once)])
        run = simulate(settings, load, num_at_once=num_at_once)
        return sum(request.num_answer for request in run.requests) / run.ended_s

    off = tokens_per_s(None, is_enabled=False)
    fixed = max(tokens_per_s(depth) for depth in (1, 2, 3))
    ours = tokens_per_s(None)
    assert fixed > 1.05 * off
    assert ours > 0.97 * fixed


def test_a_slow_draft_that_works_ahead_is_found_out_where_it_seemed_never_to_be() -> None:
    """Deep proposals keep it from getting ahead, and while it is off nothing can be."""

    def tokens_per_s(*, is_enabled: bool) -> float:
        settings = cluster(is_enabled=is_enabled, law=LARGE)
        policy = replace(settings.target.policy, max_wait_ms=25.0)
        draft = DraftSettings(
            Gpus(0.012, 1e-5, 2e-5), ahead_hit_rate=0.6, prefill_overhead_s=0.0055
        )
        settings = replace(settings, target=replace(settings.target, policy=policy), draft=draft)
        load = requests([Arrival(0.0, 1000, 100 + i % 100) for i in range(12)], ByPlace((0.5,)))
        run = simulate(settings, load, num_at_once=1)
        return sum(request.num_answer for request in run.requests) / run.ended_s

    assert tokens_per_s(is_enabled=True) > 1.1 * tokens_per_s(is_enabled=False)


@pytest.mark.parametrize("draft_s", [0.006, 0.010, 0.015])
def test_a_draft_that_is_nearly_always_ahead_is_worth_the_best_fixed_depth(draft_s: float) -> None:
    """Its answers take longer than a step may wait for: of five tokens, or, the last, of any."""

    def tokens_per_s(depth: int | None, *, is_enabled: bool = True) -> float:
        settings = cluster(depth=depth, is_enabled=is_enabled, law=LARGE)
        policy = replace(settings.target.policy, max_wait_ms=15.0)
        draft = DraftSettings(Gpus(draft_s, 1e-5, 2e-5), ahead_hit_rate=0.9)
        settings = replace(settings, target=replace(settings.target, policy=policy), draft=draft)
        load = requests([Arrival(0.0, 1000, 250) for _ in range(4)])
        run = simulate(settings, load, num_at_once=1)
        return sum(request.num_answer for request in run.requests) / run.ended_s

    fixed = max(tokens_per_s(depth) for depth in (1, 2, 3, 5))
    assert fixed > 1.4 * tokens_per_s(None, is_enabled=False)
    assert tokens_per_s(None) > 0.94 * fixed


def test_queueing_is_that_of_an_m_d_1_queue() -> None:
    # One request at a time, one step each: mean wait rho / (2 (1 - rho)) of a service time
    # (Pollaczek and Khinchine).
    utilisation = 0.7
    arrivals = draw_arrivals(Poisson(utilisation / STEP_S), Lengths(5, 1), 800.0, seed=11)
    run = simulate(cluster(is_enabled=False, max_num_seqs=1), requests(arrivals))

    waits = [r.finished_s - r.arrived_s - STEP_S for r in run.requests if r.finished_s]
    expected = STEP_S * utilisation / (2 * (1 - utilisation))
    assert np.mean(waits) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("num_targets", [1, 3])
@pytest.mark.parametrize("source", ["model", "prompt_lookup"])
def test_no_token_is_lost_or_made_up(num_targets: int, source: str) -> None:
    settings = cluster(
        source=source,  # type: ignore[arg-type]
        draft_s=0.001,
        delay_s=0.0003,
        ahead=0.6,
        num_targets=num_targets,
        num_drafts=2,
    )
    run = simulate(settings, requests(BUSY))

    assert all(request.num_answered == request.num_answer for request in run.requests)
    committed = sum(step.num_committed for target in run.steps for step in target)
    assert committed == sum(request.num_answer for request in run.requests)
    steps = [step for target in run.steps for step in target]
    assert all(step.num_accepted <= step.num_proposed for step in steps)
    prompts = sum(request.num_prompt for request in run.requests)
    assert sum(step.num_prefill_tokens for step in steps) == prompts
    assert sum(step.num_proposed for step in steps) > 0
    for target in run.steps:
        gaps = [later.ended_s - earlier.ended_s for earlier, later in pairwise(target)]
        assert min(gaps) >= STEP_S - 1e-9  # one step at a time


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    settings = cluster(draft_s=0.001, ahead=0.5, num_targets=2, num_drafts=2)
    first, second = (simulate(settings, requests(BUSY), seed=5) for _ in range(2))
    other = simulate(settings, requests(BUSY, seed=1), seed=6)

    assert first.steps == second.steps
    assert first.drafts == second.drafts
    assert first.steps != other.steps


def test_the_text_does_not_depend_on_the_policy() -> None:
    runs = [simulate(cluster(depth=depth), requests(BUSY)) for depth in (1, 5)]

    for one, other in zip(runs[0].requests, runs[1].requests, strict=True):
        assert (one.agreement.num_right == other.agreement.num_right).all()


def test_a_prefill_is_cut_to_the_budget_of_tokens() -> None:
    run = simulate(cluster(is_enabled=False), requests([Arrival(0.0, 20_000, 2)]))

    assert [step.num_prefill_tokens for step in run.steps[0]] == [8192, 8192, 3616, 0]


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    arrivals = [Arrival(0.0, 10, 20)] * 12
    run = simulate(cluster(is_enabled=False), requests(arrivals), num_at_once=4)

    assert max(step.num_requests for step in run.steps[0]) == 4
    assert run.ended_s == pytest.approx(3 * 20 * STEP_S)


def test_a_pool_of_drafts_waits_less_than_one() -> None:
    arrivals = [Arrival(0.0, 10, 40)] * 8
    found = []
    for num_drafts in (1, 4):

        class Rows:
            """A draft whose steps take time by their rows."""

            def step_s(self, load: StepLoad) -> float:
                return 0.0004 * load.num_requests

        settings = cluster(depth=3, num_drafts=num_drafts)
        settings = type(settings)(
            settings.target,
            type(settings.draft)(Rows()),
            num_drafts=num_drafts,
        )
        run = simulate(settings, requests(arrivals, ByPlace((0.9,))))
        found.append(summarise(run))

    assert found[1].waited < 0.5 * found[0].waited
    assert found[1].tokens_per_s > found[0].tokens_per_s


def test_what_stops_early_counts_until_then() -> None:
    run = simulate(cluster(is_enabled=False), alone(100), until_s=1.02)

    assert len(run.steps[0]) == 20
    assert summarise(run).tokens_per_s == pytest.approx(20 / 1.02)
    assert run.requests[0].finished_s is None


def test_steps_may_cost_nothing_to_a_look_up() -> None:
    settings = cluster(depth=3, source="prompt_lookup", ahead=1.0, delay_s=0.001)
    run = simulate(settings, alone(41))

    # All but the first proposal are there before their step.
    assert sum(step.waited_s for step in run.steps[0]) == pytest.approx(0.002, abs=1e-6)
    assert ConstantSteps(1.0).step_s(StepLoad(1, 1, 1)) == 1.0
