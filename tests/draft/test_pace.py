import math
import random

import pytest

from specray.draft.pace import Rhythm, Rhythms, answer_depth

FLIGHT_S = 0.06


def settled(rhythm: Rhythm, flight_s: float = FLIGHT_S, num: int = 200) -> Rhythm:
    for _ in range(num):
        rhythm.observe_flight(flight_s, 2, was_ahead=True)
        rhythm.observe_pass()
    return rhythm


def test_nothing_has_to_leave_before_anything_is_known() -> None:
    assert Rhythm().left_s(1000.0, was_ahead=True) == math.inf


def test_time_is_left_until_most_commits_come() -> None:
    rhythm, rng = Rhythm(), random.Random(0)
    flights = [rng.uniform(0.05, 0.07) for _ in range(2000)]
    for flight_s in flights:
        rhythm.observe_flight(flight_s, 2, was_ahead=True)
        rhythm.observe_pass()
    left_s = rhythm.left_s(0.0, was_ahead=True)
    num_shorter = sum(flight_s < left_s for flight_s in flights)
    assert 0.05 < num_shorter / len(flights) < 0.45
    assert rhythm.left_s(0.04, was_ahead=True) == pytest.approx(left_s - 0.04)


def test_answers_that_a_step_waits_for_are_timed_apart() -> None:
    rhythm = settled(Rhythm())
    for _ in range(100):
        rhythm.observe_flight(0.03, 2, was_ahead=False)
        rhythm.observe_pass()
    assert rhythm.left_s(0.0, was_ahead=False) == pytest.approx(0.03, rel=0.1)
    assert rhythm.left_s(0.0, was_ahead=True) == pytest.approx(FLIGHT_S, rel=0.1)


def test_a_target_that_has_become_faster_is_soon_known() -> None:
    rhythm = settled(settled(Rhythm(), 0.1, 50), 0.02, 50)
    assert rhythm.left_s(0.03, was_ahead=True) < 0


@pytest.mark.parametrize("round_trip_s", [0.0, 0.005, 0.02])
def test_continuations_leave_a_round_trip_before_their_commit(round_trip_s: float) -> None:
    """They are in time if they leave that long before; commits come when they are expected."""
    rhythm, rng = settled(Rhythm()), random.Random(1)
    num_late = 0
    for turn in range(1000):
        leaves_s = rhythm.left_s(0.0, was_ahead=True) - rng.uniform(0, 0.004)
        is_in_time = leaves_s + round_trip_s <= FLIGHT_S
        num_late += turn >= 200 and not is_in_time
        rhythm.observe_continuation(is_in_time=is_in_time)
    assert num_late < 0.3 * 800
    # No longer before than it has to be, either.
    assert rhythm.left_s(0.0, was_ahead=True) > 0.8 * FLIGHT_S - round_trip_s


def test_the_lead_is_bounded_where_nothing_is_ever_in_time() -> None:
    rhythm = settled(Rhythm())
    for _ in range(1000):
        rhythm.observe_continuation(is_in_time=False)
    assert rhythm.left_s(0.0, was_ahead=True) == pytest.approx(0.5 * FLIGHT_S, rel=0.1)


def test_a_lead_that_was_learnt_at_a_higher_load_leaves_time_at_a_lower_one() -> None:
    rhythm = settled(Rhythm())
    for _ in range(1000):
        rhythm.observe_continuation(is_in_time=False)
    for _ in range(200):
        rhythm.observe_flight(0.02, 2, was_ahead=False)
        rhythm.observe_pass()
    assert rhythm.left_s(0.0, was_ahead=False) == pytest.approx(0.01, rel=0.3)


def test_a_pause_says_nothing_of_flights() -> None:
    rhythm = settled(Rhythm())
    deep = answer_depth(5, [0.6], [rhythm], 0.006)
    rhythm.observe_flight(3600.0, 1, was_ahead=True)
    assert answer_depth(5, [0.6], [rhythm], 0.006) <= deep + 1
    assert not rhythm.is_running(3600.0)
    assert rhythm.is_running(FLIGHT_S)


def test_passes_that_took_too_long_are_tried_again() -> None:
    rhythm = settled(Rhythm())
    pass_s = 3 * FLIGHT_S  # of many sessions; there is one now
    assert rhythm.left_s(0.0, was_ahead=True) < pass_s
    for _ in range(100):
        rhythm.observe_flight(FLIGHT_S, 2, was_ahead=True)
    assert rhythm.left_s(0.0, was_ahead=True) > pass_s
    rhythm.observe_pass()
    assert rhythm.left_s(0.0, was_ahead=True) < pass_s


def test_a_pass_costs_what_comes_while_a_commit_waits_for_it() -> None:
    """A quarter of commits come early: half a pass later, with two tokens in each flight."""
    rhythm, pass_s = settled(Rhythm()), 0.01
    is_early = 0.25 * pass_s / FLIGHT_S
    lost = is_early * 0.5 * pass_s * 2 / FLIGHT_S
    assert rhythm.pass_loss(0.0, was_ahead=True) * pass_s**2 == pytest.approx(lost, rel=0.1)
    assert rhythm.pass_loss(2 * FLIGHT_S, was_ahead=True) * pass_s**2 == pytest.approx(
        4 * lost, rel=0.1
    )


def test_passes_that_cost_too_much_are_tried_again() -> None:
    """What they cost is known from those that have run."""
    rhythm = settled(Rhythm())
    before = rhythm.pass_loss(0.0, was_ahead=True)
    for _ in range(100):
        rhythm.observe_flight(FLIGHT_S, 2, was_ahead=True)
    assert rhythm.pass_loss(0.0, was_ahead=True) < 0.2 * before


def test_passes_cost_nothing_before_anything_is_known() -> None:
    assert Rhythm().pass_loss(1.0, was_ahead=False) == 0
    early = 0.25 * settled(Rhythm()).pass_loss(2 * FLIGHT_S, was_ahead=True)
    assert settled(Rhythm()).pass_loss(1.0, was_ahead=False) == pytest.approx(early)


def test_answers_are_as_deep_as_asked_for_before_anything_is_known() -> None:
    assert answer_depth(5, [0.1], [Rhythm()], 1.0) == 5


@pytest.mark.parametrize(
    ("survivals", "num_sessions", "pass_ms", "depth"),
    [
        # Two tokens in 60 ms: a pass of 6 ms costs 0.2 tokens of each session.
        ([0.6], 1, 6.0, 3),  # 0.6^2 = 0.36, 0.6^3 = 0.22, 0.6^4 = 0.13
        ([0.6], 1, 0.6, 5),  # as on a GPU
        ([0.6], 1, 60.0, 1),
        ([0.3], 1, 6.0, 1),
        ([0.6], 4, 6.0, 1),  # three that have theirs wait, too
        ([0.6] * 4, 4, 6.0, 3),
    ],
)
def test_an_answer_goes_on_as_long_as_a_pass_brings_more_than_it_delays(
    survivals: list[float], num_sessions: int, pass_ms: float, depth: int
) -> None:
    rhythms = [settled(Rhythm())] * num_sessions

    assert answer_depth(5, survivals, rhythms, pass_ms / 1e3) == depth


def test_a_slow_targets_sessions_lose_less_by_a_pass() -> None:
    fast, slow = settled(Rhythm(), 0.06), settled(Rhythm(), 0.6)

    assert answer_depth(5, [0.6], [fast, fast], 0.006) == 1
    assert answer_depth(5, [0.6], [slow, fast], 0.006) == 2
    assert answer_depth(5, [0.6], [slow, slow], 0.006) == 5


def test_targets_that_share_a_draft_have_rhythms_of_their_own() -> None:
    rhythms = Rhythms()
    settled(rhythms.of("large"), 0.1)
    settled(rhythms.of("small"), 0.01)
    for _ in range(200):
        rhythms.of("small").observe_verification([5, 6], [5], was_ahead=False)
        rhythms.of("small").observe_verification([5, 6], [7], was_ahead=False)  # says nothing
        rhythms.of("large").observe_verification([5, 6], [5, 6, 7], was_ahead=False)

    assert rhythms.of("large").left_s(0.0, was_ahead=True) == pytest.approx(0.1, rel=0.2)
    assert rhythms.of("small").left_s(0.0, was_ahead=True) == pytest.approx(0.01, rel=0.2)
    assert rhythms.of("large").verified_rate(was_ahead=False) > 0.9
    assert rhythms.of("small").verified_rate(was_ahead=False) < 0.1
    assert rhythms.of("new").left_s(0.0, was_ahead=True) == math.inf


def test_rhythms_of_targets_that_went_are_forgotten() -> None:
    rhythms = Rhythms()
    first, kept = rhythms.of("0"), rhythms.of("kept")
    for number in range(1, 1000):
        rhythms.of(str(number))
        rhythms.of("kept")

    assert rhythms.of("kept") is kept
    assert rhythms.of("0") is not first
