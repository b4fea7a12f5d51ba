import random
from itertools import pairwise, takewhile

import pytest

from loadtest.load.arrivals import Load, Shape


def times(load: Load, until_s: float, share: float = 1.0) -> list[float]:
    arrivals = load.arrivals(random.Random(1), share)
    return list(takewhile(lambda at_s: at_s < until_s, arrivals))


def test_constant_arrivals_are_evenly_spaced() -> None:
    found = times(Load("constant", (4.0,), 60.0), 10.0)
    assert len(found) == 40
    assert all(b - a == pytest.approx(0.25) for a, b in pairwise(found))


def test_poisson_arrivals_keep_the_rate_and_are_irregular() -> None:
    found = times(Load("poisson", (5.0,), 60.0), 2000.0)
    gaps = [b - a for a, b in pairwise(found)]
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert sum(gap > 0.4 for gap in gaps) / len(gaps) == pytest.approx(0.135, abs=0.02)  # e^-2


def test_steps_follow_each_other_and_the_last_stays() -> None:
    load = Load("stepped", (1.0, 10.0), 500.0)
    found = times(load, 1500.0)
    by_step = [sum(at_s // 500 == step for at_s in found) for step in range(3)]
    assert by_step == [pytest.approx(500, rel=0.2), *[pytest.approx(5000, rel=0.1)] * 2]
    assert [load.step(at_s) for at_s in (0.0, 499.9, 500.0, 9999.0)] == [0, 0, 1, 1]


def test_a_burst_has_four_times_the_rate_for_a_fifth_of_the_time() -> None:
    load = Load("burst", (10.0,), 100.0)
    found = times(load, 1000.0)
    inside = sum(at_s % 100 < 20 for at_s in found)
    assert inside == pytest.approx(8000, rel=0.05)
    assert len(found) - inside == pytest.approx(8000, rel=0.05)


@pytest.mark.parametrize("shape", ["constant", "poisson", "burst"])
def test_senders_share_the_rate(shape: Shape) -> None:
    load = Load(shape, (8.0,), 60.0)
    assert len(times(load, 600.0, share=0.25)) == pytest.approx(
        len(times(load, 600.0)) / 4, rel=0.1
    )


@pytest.mark.parametrize(
    ("shape", "rates", "step_s"),
    [
        ("constant", (1.0, 2.0), 1.0),
        ("poisson", (0.0,), 1.0),
        ("stepped", (), 1.0),
        ("burst", (1.0,), 0.0),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(
    shape: Shape, rates: tuple[float, ...], step_s: float
) -> None:
    with pytest.raises(ValueError, match="rate"):
        Load(shape, rates, step_s)
