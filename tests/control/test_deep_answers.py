import random
from collections.abc import Callable

from specray.control.deep_answers import DeepAnswers

STEP_S = 0.02
Rate = Callable[[bool], float]
"""Tokens that a request gets in a step, by the way that was asked."""


def run(way: DeepAnswers, rate: Rate, num_steps: int, noise: float = 0.0) -> float:
    """The share of steps that were asked for deep."""
    rng, num_deep = random.Random(3), 0
    for _ in range(num_steps):
        num_deep += way.is_deep
        tokens = 1000 * rate(way.is_deep) * (1 + rng.gauss(0, noise))
        way.observe(8, round(8 * tokens), 1000 * STEP_S)
    return num_deep / num_steps


def test_the_better_way_is_found_and_kept() -> None:
    way = DeepAnswers()

    run(way, lambda is_deep: 2.4 if is_deep else 2.0, 300, noise=0.05)
    assert run(way, lambda is_deep: 2.4 if is_deep else 2.0, 5000, noise=0.05) > 0.95


def test_the_worse_way_costs_little() -> None:
    way = DeepAnswers()

    first = run(way, lambda is_deep: 1.5 if is_deep else 2.0, 1000)
    later = run(way, lambda is_deep: 1.5 if is_deep else 2.0, 20_000)
    assert 0 < first < 0.05
    assert 0 < later < 0.02  # a quarter of that is lost


def test_two_ways_as_good_as_each_other_stay_as_they_are() -> None:
    assert run(DeepAnswers(), lambda _: 2.0, 20_000, noise=0.05) < 0.05


def test_what_has_become_better_is_found_out_within_minutes() -> None:
    way = DeepAnswers()
    run(way, lambda is_deep: 1.9 if is_deep else 2.0, 10_000)

    run(way, lambda is_deep: 3.0 if is_deep else 2.0, 4096 + 200)  # the longest pause
    assert run(way, lambda is_deep: 3.0 if is_deep else 2.0, 2000) > 0.9
    run(way, lambda is_deep: 1.0 if is_deep else 2.0, 4096 + 200)
    assert run(way, lambda is_deep: 1.0 if is_deep else 2.0, 2000) < 0.1


def test_answers_to_what_was_asked_before_do_not_count() -> None:
    """For some steps deep ones that are under way help those that are asked for short ones."""
    way, asked = DeepAnswers(), [False] * 5
    for _ in range(600):
        is_deep, was_deep = way.is_deep, asked[-5]
        changing = 0 if is_deep else 200
        way.observe(8, (24 if is_deep else 16) if is_deep == was_deep else changing, STEP_S)
        asked.append(is_deep)

    assert asked[200:].count(True) > 300
