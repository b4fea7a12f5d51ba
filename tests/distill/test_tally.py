"""Sums by key, exact up to a number of keys and nearly so beyond it."""

import numpy as np
import pytest

from specray.distill.tally import Tally, largest


def additions(num: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Few keys often and many rarely, a few at a time."""
    rng = np.random.default_rng(seed)
    return [(rng.zipf(1.3, 20).astype(np.int64) % 5000, rng.random(20)) for _ in range(num)]


def add_up(parts: list[tuple[np.ndarray, np.ndarray]]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for keys, weights in parts:
        for key, weight in zip(keys.tolist(), weights.tolist(), strict=True):
            sums[key] = sums.get(key, 0.0) + weight
    return sums


def test_as_many_keys_as_it_holds_are_added_up_exactly() -> None:
    parts = additions(400)
    wanted = add_up(parts)
    tally = Tally(len(wanted))

    for part in parts:
        tally.add(*part)

    keys, values = tally.read()
    assert keys.tolist() == sorted(wanted)
    assert values.tolist() == [wanted[key] for key in keys.tolist()]  # to the last bit
    assert tally.lost == 0


@pytest.mark.parametrize("most", [20, 60])
def test_beyond_that_no_sum_is_too_high_or_short_by_more_than_was_lost(most: int) -> None:
    parts = additions(400)
    wanted = add_up(parts)
    tally = Tally(most)

    for part in parts:
        tally.add(*part)

    found = dict(zip(*(field.tolist() for field in tally.read()), strict=True))
    assert len(found) == most
    assert 0 < tally.lost < max(wanted.values())
    for key, total in wanted.items():
        assert total - tally.lost - 1e-9 <= found.get(key, 0.0) <= total + 1e-9


def test_what_is_dropped_is_of_least_worth() -> None:
    tally = Tally(2, lambda keys, sums: sums * keys)

    tally.add(np.array([1, 2, 3]), np.array([5.0, 2.0, 3.0]))

    assert tally.read().keys.tolist() == [1, 3]
    assert tally.lost == 4.0


def test_nothing_adds_up_to_nothing() -> None:
    assert [len(field) for field in Tally(5).read()] == [0, 0]


def test_of_equal_values_the_first_are_the_largest() -> None:
    assert largest(np.array([1.0, 3.0, 2.0, 2.0, 2.0]), 3).tolist() == [1, 2, 3]
