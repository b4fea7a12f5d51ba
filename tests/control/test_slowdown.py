import pytest

from specray.control.slowdown import Slowdown


def run(slowdown: Slowdown, num_steps: int, resting_s: float, drafting_s: float = 0.05) -> int:
    """Steps beside a draft that works ahead; returns how many it rested for."""
    num_rested = 0
    for _ in range(num_steps):
        if slowdown.take_rest():
            num_rested += 1
            slowdown.observe_rest(resting_s, drafting_s)
    return num_rested


def test_a_draft_on_a_machine_of_its_own_costs_nothing() -> None:
    slowdown = Slowdown()
    run(slowdown, 500, resting_s=0.05)
    assert slowdown.factor == pytest.approx(1.0)


def test_a_draft_beside_the_target_stretches_its_steps() -> None:
    slowdown = Slowdown()
    run(slowdown, 20, resting_s=0.05 / 1.4)
    assert slowdown.factor == pytest.approx(1.4)


def test_rests_are_rare_and_the_first_comes_early() -> None:
    slowdown = Slowdown()
    assert run(slowdown, 20, 0.05) == 3
    assert run(slowdown, 1310, 0.05) == 30


def test_what_is_lost_is_forgotten_bit_by_bit() -> None:
    slowdown = Slowdown()
    run(slowdown, 200, resting_s=0.03)
    factors = [slowdown.factor]
    for _ in range(80):
        slowdown.relieve()
        factors.append(slowdown.factor)
    assert factors == sorted(factors, reverse=True)
    assert 1.0 <= factors[-1] < 1.02 < 1.5 < factors[0]


def test_steps_that_are_faster_beside_a_draft_are_chance() -> None:
    slowdown = Slowdown()
    run(slowdown, 200, resting_s=0.055)
    assert slowdown.factor == 1.0


def test_a_step_of_unknown_length_teaches_nothing() -> None:
    slowdown = Slowdown()
    slowdown.observe_rest(0.01, 0.0)
    assert slowdown.factor == 1.0
