import itertools
import math
from collections.abc import Callable

import pytest

from specray.control.answer_depth import AnswerDepth

STEP_S = 0.05
RATE = 0.75
STEPS = itertools.count()


def goodput(wait_s: Callable[[int], float]) -> Callable[[int], float]:
    return lambda depth: sum(RATE**i for i in range(depth + 1)) / (STEP_S + wait_s(depth))


def choose(chooser: AnswerDepth, wait_s: Callable[[int], float], most: int = 5) -> int:
    return chooser.choose(most, wait_s, STEP_S, goodput(wait_s), next(STEPS), 8)


@pytest.mark.parametrize(("per_token_s", "best"), [(0.0, 5), (0.006, 4), (0.012, 3), (0.03, 1)])
def test_the_last_token_is_worth_the_wait_for_it(per_token_s: float, best: int) -> None:
    assert choose(AnswerDepth(), lambda depth: per_token_s * depth) == best


def test_depths_are_weighed_now_and_then_only() -> None:
    chooser, num_plans = AnswerDepth(), 0

    def wait_s(depth: int) -> float:
        return 0.01 * depth

    def count(depth: int) -> float:
        nonlocal num_plans
        num_plans += 1
        return goodput(wait_s)(depth)

    for _ in range(160):
        chooser.choose(5, wait_s, STEP_S, count, next(STEPS), 8)
    assert num_plans <= 10 * 5


def test_nothing_is_weighed_where_the_depth_makes_no_difference() -> None:
    def fail(depth: int) -> float:
        raise AssertionError(depth)

    assert AnswerDepth().choose(5, lambda _: 0.02, STEP_S, fail, next(STEPS), 8) == 5


def test_a_depth_that_has_become_too_slow_is_left_at_once() -> None:
    chooser, longest = AnswerDepth(), 4

    def wait_s(depth: int) -> float:
        return 0.005 * depth if depth <= longest else math.inf

    assert choose(chooser, wait_s) == 4
    longest = 2
    assert choose(chooser, wait_s) == 2


def test_it_is_never_deeper_than_what_may_be_asked_for() -> None:
    chooser = AnswerDepth()
    choose(chooser, lambda depth: 0.003 * depth)

    assert [choose(chooser, lambda depth: 0.003 * depth, most) for most in (4, 3, 1)] == [4, 3, 1]


def test_where_no_step_waits_short_answers_are_tried_now_and_then() -> None:
    chooser = AnswerDepth()
    depths = [choose(chooser, lambda _: math.inf) for _ in range(2000)]

    assert set(depths) == {1, 5}
    assert 0.08 < depths.count(1) / len(depths) < 0.2
    assert [choose(chooser, lambda depth: 0.012 * depth) for _ in range(20)][-1] == 3


def costly_wait_s(depth: int) -> float:
    return 0.03 * depth


def depths_of(
    chooser: AnswerDepth,
    num_steps: int,
    rate: Callable[[int], float],
    num_requests: int = 8,
    pause_s: float = 0.0,
) -> list[int]:
    """What is asked for, step by step, and brings so many tokens for each request."""
    depths, now_s = [], 0.0
    for _ in range(num_steps):
        wait_s = costly_wait_s
        depths.append(chooser.choose(5, wait_s, STEP_S, goodput(wait_s), next(STEPS), num_requests))
        now_s += STEP_S + pause_s
        chooser.observe(num_requests, round(100 * rate(depths[-1])), STEP_S, now_s)
    return depths


def late_but_deep(depth: int) -> float:
    return 3.0 if depth == 5 else 2.0


def test_deep_answers_that_come_too_late_are_asked_for_where_they_bring_more() -> None:
    chooser = AnswerDepth()

    assert depths_of(chooser, 90, late_but_deep) == [1] * 90
    depths_of(chooser, 300, late_but_deep)
    assert depths_of(chooser, 5000, late_but_deep).count(5) > 0.95 * 5000


def test_each_size_of_load_has_a_choice_of_its_own() -> None:
    chooser = AnswerDepth()
    depths_of(chooser, 5000, late_but_deep)

    assert depths_of(chooser, 90, late_but_deep, num_requests=16) == [1] * 90
    assert depths_of(chooser, 90, late_but_deep).count(5) > 60


def test_time_in_which_nobody_asks_is_no_step_s() -> None:
    assert set(depths_of(AnswerDepth(), 300, late_but_deep, pause_s=1.0)) == {1}


def test_steps_that_nobody_was_asked_for_show_nothing() -> None:
    chooser = AnswerDepth()
    for n in range(300):
        chooser.observe(8, 16, STEP_S, n * STEP_S)

    assert depths_of(chooser, 50, late_but_deep) == [1] * 50
