import random

import pytest

from specray.draft.pace import Pace, Rhythm


def settle(pace: Pace, rows_in_time: int, num_outcomes: int) -> list[int]:
    """The rows of passes of which those up to some size are in time."""
    rows = []
    for _ in range(num_outcomes):
        rows.append(pace.most_rows)
        pace.observe(is_in_time=pace.most_rows <= rows_in_time)
    return rows


def test_it_begins_with_all_and_keeps_them_while_they_are_in_time() -> None:
    assert settle(Pace(16), 16, 50) == [16] * 50


def test_it_comes_down_to_what_is_in_time() -> None:
    rows = settle(Pace(16), 5, 400)[200:]
    assert 4 <= min(rows) <= max(rows) <= 6
    assert sum(row > 5 for row in rows) < 0.35 * len(rows)


def test_it_comes_back_when_there_is_more_time() -> None:
    pace = Pace(16)
    settle(pace, 3, 200)
    assert pace.most_rows <= 4
    settle(pace, 16, 60)
    assert pace.most_rows == 16


def test_there_is_always_a_row() -> None:
    assert settle(Pace(16), 0, 300)[-1] == 1


def test_nothing_is_due_before_anything_is_known() -> None:
    rhythm = Rhythm()
    assert not rhythm.is_due(1000.0)
    rhythm.observe_pass(0.01)
    assert not rhythm.is_due(1000.0)


@pytest.mark.parametrize("pass_s", [0.005, 0.02])
def test_a_commit_is_due_when_a_pass_would_outlast_most_flights(pass_s: float) -> None:
    rhythm, rng = Rhythm(), random.Random(0)
    flights = [rng.uniform(0.05, 0.07) for _ in range(2000)]
    for flight_s in flights:
        rhythm.observe_flight(flight_s)
        rhythm.observe_pass(pass_s)
    earliest = next(ms for ms in range(100) if rhythm.is_due(ms / 1e3)) / 1e3
    num_met = sum(flight_s < earliest + pass_s for flight_s in flights)
    assert 0.1 < num_met / len(flights) < 0.45


def test_a_target_that_has_become_faster_is_soon_known() -> None:
    rhythm = Rhythm()
    for flight_s in [0.1] * 50 + [0.02] * 50:
        rhythm.observe_flight(flight_s)
    assert rhythm.is_due(0.03)


def test_passes_that_took_too_long_are_tried_again() -> None:
    rhythm = Rhythm()
    for _ in range(50):  # of many sessions
        rhythm.observe_flight(0.08)
        rhythm.observe_pass(0.2)
    assert rhythm.is_due(0.0)
    for _ in range(100):  # of one
        rhythm.observe_flight(0.05)
    assert not rhythm.is_due(0.0)
