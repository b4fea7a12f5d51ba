import itertools
from collections.abc import Callable

import pytest

from specray.control.depth import DepthPlan
from specray.control.drafting import DraftingDepth, DraftingTime

STEP_S = 0.05
MOST = 5


def plans(rate: float) -> Callable[[int, float], DepthPlan]:
    """Steps of one request whose draft tokens cost nothing to verify."""

    def plan(depth: int, drafting_s: float) -> DepthPlan:
        expected = sum(rate**i for i in range(depth + 1))
        return DepthPlan((depth,), expected, STEP_S + drafting_s, STEP_S)

    return plan


def timed(per_token_s: float, most: int = MOST, *, is_fixed: bool = False) -> DraftingDepth:
    drafting = DraftingDepth(most, is_fixed=is_fixed)
    for depth, _ in itertools.product(range(1, most + 1), range(40)):
        drafting.time.observe(depth, 1, per_token_s * depth)
    return drafting


def settle(drafting: DraftingDepth, rate: float, num_decoding: int = 1, num_steps: int = 20) -> int:
    for _ in range(num_steps):
        drafting.choose(MOST, num_decoding, plans(rate))
    return drafting.depth


def test_time_is_that_of_loads_of_the_same_size() -> None:
    time = DraftingTime()
    assert time.expected_s(3, 1) == 0.0
    for _ in range(200):
        for depth in (1, 2, 4):
            time.observe(depth, 1, 0.002 * depth)
            time.observe(depth, 9, 0.004 * depth)
    assert time.expected_s(3, 1) == pytest.approx(0.006)
    assert time.expected_s(3, 15) == pytest.approx(0.012)
    assert time.expected_s(3, 1000) == time.expected_s(3, 15)  # the nearest that is known
    assert time.expected_s(0, 1) == 0.0


def test_time_forgets_a_slow_start() -> None:
    time = DraftingTime()
    time.observe(2, 1, 0.5)
    for _ in range(20):
        time.observe(2, 1, 0.01)
    assert time.expected_s(2, 1) < 0.012
    time.observe(2, 1, 9.0)
    assert time.expected_s(2, 1) < 0.014


@pytest.mark.parametrize(
    ("per_token_s", "rate", "best"),
    [(0.001, 0.8, 5), (0.02, 0.8, 2), (0.035, 0.8, 1), (0.045, 0.8, 0), (0.001, 0.01, 0)],
)
def test_it_drafts_as_deep_as_pays(per_token_s: float, rate: float, best: int) -> None:
    assert settle(timed(per_token_s), rate) == best


def test_the_first_look_comes_as_soon_as_drafting_is_timed() -> None:
    drafting = timed(0.1)
    assert settle(drafting, 0.8, num_steps=4) == 0


def test_looks_are_rare_and_at_once_where_the_load_changes() -> None:
    drafting, num_plans = timed(0.001), 0
    slow = plans(0.8)

    def plan(depth: int, drafting_s: float) -> DepthPlan:
        nonlocal num_plans
        num_plans += 1
        return slow(depth, drafting_s)

    for _ in range(160):
        drafting.choose(MOST, 1, plan)
    assert num_plans <= 11 * (MOST + 1)
    before = num_plans
    drafting.choose(MOST, 2, plan)
    assert num_plans > before


def test_what_drafts_a_fixed_number_drafts_that_or_nothing() -> None:
    assert settle(timed(0.001, is_fixed=True), 0.8) == MOST
    assert settle(timed(0.035, is_fixed=True), 0.8) == 0  # one token alone would pay


@pytest.mark.parametrize("drafting_s", [0.0005, 0.005, 0.04])
def test_trials_cost_little_and_bring_it_back_when_it_pays(drafting_s: float) -> None:
    drafting = timed(drafting_s)
    settle(drafting, 0.001)
    num_tried = 0
    for _ in range(20_000):
        drafting.choose(MOST, 1, plans(0.001))
        assert drafting.depth == int(drafting.is_trying)
        if drafting.is_trying:
            num_tried += 1
            drafting.observe_drafting(1, 1, drafting_s, is_decode_only=True)
    assert 0 < num_tried * drafting_s < 0.006 * 20_000 * STEP_S
    for _ in range(10_000):
        drafting.choose(MOST, 1, plans(0.95))
        if drafting.is_trying:
            drafting.observe_drafting(1, 1, drafting_s, is_decode_only=True)
            drafting.observe_verification()
    assert drafting.depth > 0
    assert not drafting.is_trying


def test_a_trial_waits_for_a_request_that_it_can_draft_for() -> None:
    """Steps of requests whose beginnings it has missed cost nothing, and show nothing."""
    drafting = timed(0.045)
    settle(drafting, 0.5)
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.5))
    settle(drafting, 0.5, num_steps=1000)
    assert drafting.is_trying


def test_a_trial_ends_with_enough_verifications() -> None:
    drafting = timed(0.045)
    settle(drafting, 0.5)
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.5))
    for _ in range(16):
        drafting.observe_verification()
    drafting.choose(MOST, 1, plans(0.95))
    assert not drafting.is_trying
    assert drafting.depth > 0


def test_it_is_not_worth_its_time_where_something_better_is_mostly_there() -> None:
    drafting = timed(0.01)
    assert settle(drafting, 0.6) > 0
    for _ in range(200):
        drafting.observe_choice(is_beaten=True)
    assert settle(drafting, 0.6) == 0


def test_a_trial_judges_by_what_is_there_now() -> None:
    drafting = timed(0.01)
    for _ in range(500):
        drafting.observe_choice(is_beaten=True)
    assert settle(drafting, 0.5) == 0
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.5))
    for _ in range(16):
        drafting.observe_choice(is_beaten=False)
        drafting.observe_verification()
    assert settle(drafting, 0.5, num_steps=1) > 0


def test_a_trial_of_what_drafts_a_fixed_number_is_of_that() -> None:
    drafting = timed(0.035, is_fixed=True)
    settle(drafting, 0.1)
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.1))
    assert drafting.depth == MOST


def test_a_rule_that_weighs_no_costs_is_followed() -> None:
    drafting = timed(1.0)
    drafting.follow(MOST, (2, 3))
    assert drafting.depth == 3
    drafting.follow(2, (3,))
    assert drafting.depth == 2
    drafting.follow(MOST, (0,))
    assert drafting.depth == 0
    fixed = timed(1.0, is_fixed=True)
    fixed.follow(MOST, (1,))
    assert fixed.depth == MOST


def test_nothing_is_drafted_while_speculation_is_off() -> None:
    drafting = timed(0.001)
    drafting.stop()
    assert (drafting.depth, drafting.is_trying) == (0, False)


@pytest.mark.parametrize("period", [20, 100, 1000])
def test_a_load_that_changes_does_not_keep_it_from_trials(period: int) -> None:
    drafting = timed(0.04)
    settle(drafting, 0.001)

    def begins_one_at(step: int) -> bool:
        drafting.choose(MOST, 1 + step // period % 2, plans(0.001))
        return drafting.is_trying

    assert any(begins_one_at(step) for step in range(40_000))


def test_what_reading_prompts_takes_is_weighed() -> None:
    drafting = timed(0.001)
    assert settle(drafting, 0.8) == MOST
    for _ in range(300):
        drafting.observe_drafting(MOST, 1, 0.2, is_decode_only=False)
    assert settle(drafting, 0.8) == 0


def test_a_trial_in_which_it_can_not_draft_ends() -> None:
    drafting = timed(0.045)
    settle(drafting, 0.5)
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.5))
    for _ in range(32):
        drafting.observe_drafting(1, 1, 0.0, is_decode_only=True)
    drafting.choose(MOST, 1, plans(0.5))
    assert not drafting.is_trying
    assert drafting.time.expected_s(1, 1) == pytest.approx(0.045)


def test_it_settles_after_it_is_taken_up_and_pays_for_that_if_it_was_in_vain() -> None:
    drafting = timed(0.01)
    assert not drafting.is_settling
    settle(drafting, 0.001)
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.001))
    assert drafting.is_settling
    for _ in range(16):
        drafting.observe_verification()
    drafting.choose(MOST, 1, plans(0.9))
    num_settling = 0
    while drafting.is_settling:
        drafting.choose(MOST, 1, plans(0.9))
        drafting.observe_drafting(MOST, 1, 0.02, is_decode_only=True)
        num_settling += 1
    assert 100 < num_settling < 1000
    assert settle(drafting, 0.001) == 0
    pause = 0
    while not drafting.is_trying:
        drafting.choose(MOST, 1, plans(0.001))
        pause += 1
    assert 0.02 * num_settling < 0.006 * pause * STEP_S


def test_it_drafts_on_while_nothing_is_known_of_steps() -> None:
    drafting = timed(0.001)
    for _ in range(50):
        drafting.choose(MOST, 4, lambda depth, _: DepthPlan((depth,), 1.0, 0.0, 0.0))
    assert drafting.depth == MOST


def test_what_a_trial_takes_to_read_prompts_is_paid_for_too() -> None:
    pauses = []
    for prompts_s in (0.0, 4.0):
        drafting = timed(0.04)
        settle(drafting, 0.001)
        while not drafting.is_trying:
            drafting.choose(MOST, 1, plans(0.001))
        drafting.observe_drafting(1, 1, prompts_s, is_decode_only=False)
        for _ in range(32):
            drafting.observe_drafting(1, 1, 0.04, is_decode_only=True)
        drafting.choose(MOST, 1, plans(0.001))
        assert drafting.depth == 0
        pauses.append(0)
        while not drafting.is_trying:
            drafting.choose(MOST, 1, plans(0.001))
            pauses[-1] += 1
    assert pauses[1] > 1.5 * pauses[0]
