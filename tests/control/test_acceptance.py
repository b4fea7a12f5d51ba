import random

import pytest

from specray.control.acceptance import (
    AcceptanceRate,
    expected_length,
    request_acceptance,
    source_acceptance,
)


def verify(acceptance: AcceptanceRate, rate: float, num_steps: int, depth: int = 4) -> None:
    rng = random.Random(0)
    for _ in range(num_steps):
        num_accepted = 0
        while num_accepted < depth and rng.random() < rate:
            num_accepted += 1
        acceptance.observe(depth, num_accepted)


def test_the_prior_holds_until_something_was_verified() -> None:
    assert request_acceptance().rate(prior=0.37) == pytest.approx(0.37)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_a_source_converges_to_its_rate_whatever_the_prior(rate: float) -> None:
    acceptance = source_acceptance()
    verify(acceptance, rate, 1000)

    assert acceptance.rate(prior=0.5) == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_the_depth_does_not_bias_the_rate(depth: int) -> None:
    acceptance = source_acceptance()
    verify(acceptance, 0.7, 1500, depth)

    assert acceptance.rate(prior=0.7) == pytest.approx(0.7, abs=0.05)


def test_a_request_forgets_its_past() -> None:
    acceptance = request_acceptance()
    verify(acceptance, 1.0, 100)
    assert acceptance.rate(prior=0.5) > 0.85

    verify(acceptance, 0.0, 60)
    assert acceptance.rate(prior=0.5) < 0.25


def test_what_was_never_tried_counts_for_nothing() -> None:
    first, second = request_acceptance(), request_acceptance()
    first.observe(num_proposed=2, num_accepted=1)
    second.observe(num_proposed=60, num_accepted=1)

    assert first.rate(0.5) == second.rate(0.5)


def test_an_empty_proposal_teaches_nothing() -> None:
    acceptance = request_acceptance()
    acceptance.observe(4, 2)
    before = acceptance.rate(0.5)
    acceptance.observe(0, 0)

    assert acceptance.rate(0.5) == before


def test_the_rate_is_never_certain() -> None:
    always, never = request_acceptance(), request_acceptance()
    verify(always, 1.0, 500)
    verify(never, 0.0, 500)

    assert 0 < never.rate(0.5) < 0.1 < 0.9 < always.rate(0.5) < 1


def test_a_chain_goes_as_far_as_all_before_it_survives() -> None:
    assert expected_length([0.5, 0.5, 1.0]) == pytest.approx(0.5 + 0.25 + 0.25)
    assert expected_length([]) == 0.0
