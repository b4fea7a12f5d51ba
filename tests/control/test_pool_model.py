import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.control.pool_model import DraftCosts, draft_costs, gains, waited_share
from tests.control.reports_util import draft, idle, target


def test_without_drafts_or_requests_there_is_no_gain() -> None:
    assert gains([target(), idle()], DraftCosts(), 0) == (1.0, 1.0)
    assert gains([target(), idle()], DraftCosts(), 1)[1] == 1.0


def test_proposals_that_cost_nothing_bring_all_that_speculation_can() -> None:
    assert gains([target(relay_s=0.0)], DraftCosts(), 1) == (2.0,)


def test_what_is_drafted_ahead_is_not_waited_for() -> None:
    slow = DraftCosts(each_s=0.5)

    assert gains([target(hit_rate=1.0)], slow, 1) == (2.0,)
    assert gains([target(hit_rate=0.0)], slow, 1) == (1.0,)
    assert waited_share(target(hit_rate=0.9, asked_per_s=0.1)) == 1.0  # too few to tell


def test_the_wait_lengthens_the_step() -> None:
    """A step of 100 ms that waits for 4 proposals of 10 ms each, and for the relay."""
    (gain,) = gains([target(relay_s=0.010)], DraftCosts(each_s=0.010), 1)

    assert gain == pytest.approx(2.0 * 100 / 150)


def test_no_step_waits_for_longer_than_it_may() -> None:
    costs = DraftCosts(each_s=0.010)

    assert gains([target()], costs, 1, max_wait_s=0.030) == (1.0,)
    assert gains([target()], costs, 1, max_wait_s=0.060) == gains([target()], costs, 1)
    assert gains([target()], costs, 2, max_wait_s=0.030) == gains([target()], costs, 2)
    half_ahead = target(hit_rate=0.5)
    assert gains([half_ahead], costs, 1, max_wait_s=0.030) == (1.5,)


def test_more_drafts_help_where_batches_divide_and_not_where_they_do_not() -> None:
    each, fixed = DraftCosts(each_s=0.01), DraftCosts(fixed_s=0.04)

    by_number = [gains([target()], each, n)[0] for n in (1, 2, 4, 8)]
    assert by_number[0] < by_number[1] < by_number[2] == by_number[3]  # a request each
    assert gains([target()], fixed, 1) == gains([target()], fixed, 4)


def test_targets_that_share_drafts_wait_for_each_other() -> None:
    costs = DraftCosts(fixed_s=0.05)

    assert gains([target()] * 2, costs, 1)[0] < gains([target()], costs, 1)[0]
    assert gains([target(), idle()], costs, 1)[0] == gains([target()], costs, 1)[0]


def test_a_target_that_is_busy_half_of_the_time_gains_half() -> None:
    busy, half = gains([target(num_running=1.0), target(num_running=0.5)], DraftCosts(), 1)

    assert half - 1 == pytest.approx((busy - 1) / 2, rel=0.01)


@given(
    st.lists(
        st.builds(
            target,
            num_running=st.floats(0, 64),
            gain=st.floats(0, 4),
            gain_step_s=st.floats(0.001, 1),
            hit_rate=st.floats(0, 1),
        ),
        max_size=4,
    ),
    st.floats(0, 1),
    st.floats(0, 0.1),
    st.integers(0, 20),
)
def test_gains_are_bounded_and_never_fall_with_the_number_of_drafts(
    targets: list[object], fixed_s: float, each_s: float, num_drafts: int
) -> None:
    costs = DraftCosts(fixed_s, each_s)
    few, more = gains(targets, costs, num_drafts), gains(targets, costs, num_drafts + 1)  # type: ignore[arg-type]

    for now, then, report in zip(few, more, targets, strict=True):
        assert 1.0 <= now <= then + 1e-9 <= max(1.0, report.gain) + 1e-6  # type: ignore[attr-defined]


def test_costs_are_those_of_the_drafts_that_answer() -> None:
    busy = draft(answers_per_s=30.0, answer_fixed_s=0.01, answer_each_s=0.004)
    quiet = draft(answers_per_s=10.0, answer_fixed_s=0.05, answer_each_s=0.0)
    silent = draft(answers_per_s=0.0, answer_fixed_s=9.0)

    costs = draft_costs([busy, quiet, silent], DraftCosts())
    assert costs == pytest.approx(DraftCosts(0.02, 0.003))
    assert draft_costs([silent], costs) == costs  # remembered
    assert draft_costs([], costs) == costs


def test_a_target_that_does_not_speculate_is_in_no_drafts_way() -> None:
    costs = DraftCosts(each_s=0.010)
    alone = gains([target()], costs, 2)

    assert gains([target(), target(gain=0.0, gain_step_s=0.0)], costs, 2) == (*alone, 1.0)
    assert gains([target(), target(gain=0.9)], costs, 2) == (*alone, 1.0)


def test_a_draft_more_never_brings_less() -> None:
    """Also where one more makes answers come just within the longest wait."""
    ahead = target(hit_rate=0.8, gain=1.8, gain_step_s=0.02, num_running=4.0)
    factors = [gains([ahead], DraftCosts(each_s=0.01), n, max_wait_s=0.025)[0] for n in range(6)]

    assert factors == sorted(factors)
