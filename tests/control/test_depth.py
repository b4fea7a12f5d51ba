import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.control.depth import Candidate, DepthPlan, Numbers, plan_depths

rates = st.floats(0.0, 1.0)
candidates = st.lists(st.builds(Candidate, rates, st.integers(0, 4)), max_size=3)


def expected_commits(batch: list[Candidate], depths: tuple[int, ...], num_plain: int) -> float:
    """The one sure token of each request, and each draft token by its chance to survive."""
    chains = zip(batch, depths, strict=True)
    survivals = (c.acceptance_rate**i for c, depth in chains for i in range(1, depth + 1))
    return num_plain + len(batch) + sum(survivals)


def best_goodput(batch: list[Candidate], num_plain: int, base: float, cost: float) -> float:
    """Goodput of the best of all depths, by trying them all."""
    num_sure = num_plain + len(batch)
    return max(
        expected_commits(batch, depths, num_plain) / (base + cost * (num_sure + sum(depths)))
        for depths in itertools.product(*(range(c.max_depth + 1) for c in batch))
    )


@given(candidates, st.integers(0, 5), st.floats(1e-3, 1.0), st.floats(0.0, 0.5), st.floats(0, 1))
def test_no_other_depths_have_a_higher_goodput(
    batch: list[Candidate], num_plain: int, base: float, cost: float, wait_s: float
) -> None:
    plan = plan_depths(batch, num_plain, lambda n: base + cost * n, wait_s)

    assert plan.goodput == pytest.approx(best_goodput(batch, num_plain, base + wait_s, cost))
    assert all(0 <= d <= c.max_depth for d, c in zip(plan.depths, batch, strict=True))


@given(candidates, st.integers(0, 5), st.floats(0, 1))
def test_the_promise_is_that_of_the_depths(
    batch: list[Candidate], num_plain: int, wait_s: float
) -> None:
    plan = plan_depths(batch, num_plain, lambda n: 0.05 + 0.001 * n, wait_s)

    num_tokens = num_plain + len(batch) + sum(plan.depths)
    assert plan.num_expected == pytest.approx(expected_commits(batch, plan.depths, num_plain))
    assert plan.step_s == pytest.approx(0.05 + 0.001 * num_tokens + wait_s)


def test_tokens_that_cost_nothing_are_all_taken() -> None:
    batch = [Candidate(0.1, 3), Candidate(1.0, 5), Candidate(0.5, 0)]

    assert plan_depths(batch, 0, lambda n: 0.05 + 0 * n).depths == (3, 5, 0)


def test_a_token_that_is_never_accepted_is_not_taken_even_for_free() -> None:
    assert plan_depths([Candidate(0.0, 8)], 0, lambda n: 0.05 + 0 * n).depths == (0,)


def test_a_full_batch_leaves_no_room_for_poor_drafts() -> None:
    def compute_bound(num_tokens: Numbers) -> Numbers:
        return 0.001 * num_tokens

    assert plan_depths([Candidate(0.6, 5)] * 64, 0, compute_bound).depths == (0,) * 64


def test_the_likelier_request_gets_the_depth() -> None:
    depths = plan_depths([Candidate(0.4, 5), Candidate(0.9, 5)], 2, lambda n: 1 + 0.1 * n).depths

    assert depths[1] > depths[0]


def test_an_empty_step_promises_nothing() -> None:
    plan = plan_depths([], 0, lambda n: 0.05 + 0 * n)

    assert (plan.depths, plan.goodput) == ((), 0.0)


def test_nothing_is_promised_while_no_step_was_measured() -> None:
    plan = plan_depths([Candidate(0.9, 5)], 3, lambda n: 0 * n)

    assert (plan.depths, plan.goodput) == ((0,), 0.0)


def test_a_wait_without_end_is_not_worth_it() -> None:
    plan = plan_depths([Candidate(0.9, 5)], 0, lambda n: 0.05 + 0 * n, wait_s=math.inf)

    assert (plan.depths, plan.goodput) == ((0,), 0.0)


def test_goodput_is_tokens_per_second() -> None:
    assert DepthPlan((), 10.0, 0.5).goodput == 20.0


def test_a_step_time_with_a_jump_does_not_hide_what_lies_behind_it() -> None:
    def padded(num_tokens: Numbers) -> Numbers:
        return 1.0 + 0.2 * (num_tokens > 2)  # as of CUDA graphs of 2 and 8 tokens

    assert plan_depths([Candidate(0.9, 4)], 1, padded).depths == (4,)
