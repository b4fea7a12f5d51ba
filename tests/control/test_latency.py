import random

import pytest

from specray.control.latency import LatencyEstimate


def test_nothing_is_known_before_the_first_proposal() -> None:
    latency = LatencyEstimate()

    assert latency.mean_s is None
    assert latency.patience_s is None


def test_the_first_measurement_is_believed_with_some_patience() -> None:
    latency = LatencyEstimate()
    latency.observe(0.010)

    assert latency.mean_s == pytest.approx(0.010)
    assert latency.patience_s == pytest.approx(0.025)


def test_it_settles_on_the_mean_and_is_patient_with_the_usual_spread() -> None:
    latency = LatencyEstimate()
    rng = random.Random(0)
    for _ in range(300):
        latency.observe(rng.uniform(0.008, 0.012))

    assert latency.mean_s == pytest.approx(0.010, rel=0.1)
    assert latency.patience_s is not None
    assert 0.012 < latency.patience_s < 0.016


def test_steady_latencies_leave_no_reason_for_patience() -> None:
    latency = LatencyEstimate()
    for _ in range(200):
        latency.observe(0.010)

    assert latency.patience_s == pytest.approx(0.010, rel=0.01)


def test_a_slow_start_is_soon_outweighed() -> None:
    latency = LatencyEstimate()
    latency.observe(0.100)  # the draft warms up
    for _ in range(9):
        latency.observe(0.005)

    assert latency.mean_s is not None
    assert latency.mean_s < 0.016


def test_it_follows_a_change_for_the_worse() -> None:
    latency = LatencyEstimate()
    for _ in range(50):
        latency.observe(0.005)
    for _ in range(30):
        latency.observe(0.050)

    assert latency.mean_s == pytest.approx(0.050, rel=0.1)
