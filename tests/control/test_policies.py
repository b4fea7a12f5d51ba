import numpy as np
import pytest

from specray.control.depth import Batch, Numbers
from specray.control.policies import DepthPolicy, make_policy
from specray.control.roofline import StepLoad
from specray.types import (
    AcceptanceRule,
    BatchSizeRule,
    DepthRule,
    FixedRule,
    GoodputRule,
    QpsRule,
)
from tests.control.chains import even_chains


class Free:
    """Steps whose draft tokens cost nothing."""

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        return np.full_like(num_drafts, 0.05)


def depths(
    policy: DepthPolicy, size: int = 1, cap: int = 9, qps: float = 0.0, most: int = 10_000
) -> set[int]:
    batch = Batch(StepLoad(size, size, 0), size, max_drafts=most, arrivals_per_s=qps)
    return set(policy.plan(even_chains([0.9] * size, [cap] * size), batch, Free()).depths)


def test_goodput_takes_what_is_free() -> None:
    assert depths(make_policy(GoodputRule())) == {9}


def test_fixed_is_fixed_but_for_the_cap() -> None:
    policy = make_policy(FixedRule(depth=4))

    assert depths(policy) == {4}
    assert depths(policy, cap=2) == {2}


@pytest.mark.parametrize(
    ("size", "depth"), [(1, 3), (64, 3), (65, 2), (101, 2), (102, 1), (165, 1), (166, 0)]
)
def test_the_table_is_read_as_vllm_reads_it(size: int, depth: int) -> None:
    assert depths(make_policy(BatchSizeRule()), size) == {depth}


@pytest.mark.parametrize(("qps", "depth"), [(0.0, 5), (4.0, 4), (20.0, 2), (1000.0, 2)])
def test_the_formula_falls_with_the_load(qps: float, depth: int) -> None:
    policy = make_policy(QpsRule(base_depth=5, min_depth=1, adjustment=0.6, capacity_qps=10.0))
    for _ in range(200):
        policy.observe(8, 8)

    assert depths(policy, qps=qps) == {depth}


def test_the_formula_falls_with_the_acceptance() -> None:
    policy = make_policy(QpsRule(min_depth=0))
    for _ in range(200):
        policy.observe(4, 0)

    assert depths(policy) == {0}


def test_thresholds_move_the_depth_one_by_one_between_bounds() -> None:
    policy = make_policy(AcceptanceRule(start_depth=3, min_depth=1, max_depth=5, window=10))
    seen = []
    for accepted in [10] * 3 + [6] * 2 + [1] * 6:
        policy.observe(10, accepted)
        (depth,) = depths(policy)
        seen.append(depth)

    assert seen == [4, 5, 5, 5, 5, 4, 3, 2, 1, 1, 1]


def test_thresholds_wait_for_a_window() -> None:
    policy = make_policy(AcceptanceRule(start_depth=3, window=100))
    for _ in range(9):
        policy.observe(10, 10)
        assert depths(policy) == {3}


@pytest.mark.parametrize(
    "rule", [GoodputRule(), FixedRule(9), BatchSizeRule(((1, 9, 9),)), QpsRule(9), AcceptanceRule()]
)
def test_budgets_bind_all(rule: DepthRule) -> None:
    batch = Batch(StepLoad(4, 4, 0), 4, max_drafts=5)
    plan = make_policy(rule).plan(even_chains([0.9] * 4, [9] * 4), batch, Free())

    assert sum(plan.depths) <= 5


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        (FixedRule, {"depth": -1}, "depth -1 is negative"),
        (BatchSizeRule, {"table": ((1, 8, 3), (8, 9, 2))}, "overlap"),
        (BatchSizeRule, {"table": ((5, 4, 3),)}, r"\(5, 4, 3\)"),
        (QpsRule, {"min_depth": 6}, "min_depth 6 is not between 0 and base_depth 5"),
        (QpsRule, {"capacity_qps": 0.0}, "capacity_qps 0.0 is not positive"),
        (QpsRule, {"adjustment": -1.0}, "adjustment -1.0 is negative"),
        (AcceptanceRule, {"lower": 0.9}, "lower 0.9 and upper 0.8"),
        (AcceptanceRule, {"start_depth": 9}, "must ascend"),
        (AcceptanceRule, {"window": 0}, "window 0"),
    ],
)
def test_faulty_parameters_are_refused(
    rule: type[DepthRule], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rule(**arguments)
