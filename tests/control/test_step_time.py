import random
from collections.abc import Callable

import pytest

from specray.control.step_time import StepTimeModel

SIZES = (1, 2, 6, 12)


def memory_bound(num_tokens: int) -> float:
    return 0.050 + 0.0015 * num_tokens


def near_the_ridge(num_tokens: int) -> float:
    return 0.010 + 0.010 * num_tokens


def feed(
    model: StepTimeModel,
    law: Callable[[int], float],
    num_steps: int,
    noise: float = 0.0,
    outliers: float = 0.0,
) -> None:
    rng = random.Random(0)
    for step in range(num_steps):
        num_tokens = SIZES[step % len(SIZES)]
        seconds = law(num_tokens) * rng.uniform(1 - noise, 1 + noise)
        is_outlier = rng.random() < outliers
        model.observe(num_tokens, seconds * 30 if is_outlier else seconds)


def predictions(model: StepTimeModel) -> list[float]:
    return [model.predict(num_tokens) for num_tokens in SIZES]


def test_nothing_is_predicted_before_the_first_step() -> None:
    model = StepTimeModel()

    assert not model.is_ready
    assert model.predict(8) == 0


def test_one_step_is_enough_to_predict_its_like() -> None:
    model = StepTimeModel()
    model.observe(4, 0.050)

    assert model.is_ready
    assert model.predict(4) == pytest.approx(0.050)
    assert 0.050 < model.predict(8) < 0.060  # a little more: tokens are nearly free, not free


@pytest.mark.parametrize("law", [memory_bound, near_the_ridge])
def test_a_noisy_law_is_found(law: Callable[[int], float]) -> None:
    model = StepTimeModel()
    feed(model, law, 300, noise=0.1)

    assert predictions(model) == pytest.approx([law(n) for n in SIZES], rel=0.06)
    assert model.predict(24) == pytest.approx(law(24), rel=0.1)


def test_accidents_move_it_little() -> None:
    model = StepTimeModel()
    feed(model, memory_bound, 400, noise=0.05, outliers=0.02)

    assert predictions(model) == pytest.approx([memory_bound(n) for n in SIZES], rel=0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
def test_a_new_law_replaces_the_old_one(factor: float) -> None:
    model = StepTimeModel()
    feed(model, memory_bound, 300)
    feed(model, lambda n: factor * memory_bound(n), 400)

    assert predictions(model) == pytest.approx([factor * memory_bound(n) for n in SIZES], rel=0.1)


@pytest.mark.parametrize("first_s", [0.0, 0.005, 0.2, 5.0])
def test_a_first_step_unlike_the_others_is_forgotten(first_s: float) -> None:
    model = StepTimeModel()
    model.observe(1, first_s)  # a kernel is compiled, say
    for _ in range(100):
        model.observe(1, memory_bound(1))

    assert model.predict(1) == pytest.approx(memory_bound(1), rel=0.25)
    assert model.predict(6) < 1.25 * model.predict(1)  # and says nothing about the cost of tokens


def test_steps_of_one_size_leave_the_cost_as_it_was() -> None:
    model = StepTimeModel()
    feed(model, near_the_ridge, 300)
    rng = random.Random(0)
    for _ in range(50):
        model.observe(6, near_the_ridge(6) * rng.uniform(0.9, 1.1))

    assert model.predict(12) == pytest.approx(near_the_ridge(12), rel=0.15)


def test_more_tokens_never_take_less_time() -> None:
    model = StepTimeModel()
    for _ in range(50):
        model.observe(1, 0.1)
        model.observe(32, 0.05)

    times = [model.predict(n) for n in (0, 1, 32, 1000)]
    assert times == sorted(times)
    assert times[0] >= 0
