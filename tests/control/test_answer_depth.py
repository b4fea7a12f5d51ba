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
    return chooser.choose(most, wait_s, STEP_S, goodput(wait_s), next(STEPS))


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
        chooser.choose(5, wait_s, STEP_S, count, next(STEPS))
    assert num_plans <= 10 * 5


def test_nothing_is_weighed_where_the_depth_makes_no_difference() -> None:
    def fail(depth: int) -> float:
        raise AssertionError(depth)

    assert AnswerDepth().choose(5, lambda _: 0.02, STEP_S, fail, next(STEPS)) == 5


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
