from typing import Any

import pytest
from pydantic import ValidationError

from specray.config import MAX_DEPTH, LiveDraftConfig, LivePolicyConfig, SpeculationConfig
from specray.types import BatchSizeRule, FixedRule, QpsRule, SpeculationPolicy

START = SpeculationPolicy(is_enabled=True, max_depth=5, max_wait_ms=20.0)


@pytest.mark.parametrize(
    ("live", "policy"),
    [
        ({}, START),
        ({"is_enabled": False}, SpeculationPolicy(False, 5, 20.0)),
        ({"max_depth": 2}, SpeculationPolicy(True, 2, 20.0)),
        ({"max_depth": 0}, SpeculationPolicy(True, 0, 20.0)),
        ({"max_depth": 9}, SpeculationPolicy(True, 5, 20.0)),
        ({"stop_gap": True}, SpeculationPolicy(True, 5, 20.0, has_stop_gap=True)),
        ({"max_wait_ms": 1.5}, SpeculationPolicy(True, 5, 1.5)),
        ({"max_wait_ms": 99.0}, SpeculationPolicy(True, 5, 99.0)),
        ({"depth_policy": "qps_formula"}, SpeculationPolicy(True, 5, 20.0, QpsRule())),
        (
            {"depth_policy": {"name": "fixed", "depth": 2}},
            SpeculationPolicy(True, 5, 20.0, FixedRule(depth=2)),
        ),
    ],
)
def test_live_settings_replace_those_of_the_start_within_its_depth(
    live: dict[str, Any], policy: SpeculationPolicy
) -> None:
    assert LivePolicyConfig(**live).apply(START) == policy


def test_a_rule_of_the_start_holds_until_a_live_one_comes() -> None:
    start = SpeculationConfig(
        depth_policy={"name": "batch_size_table", "table": [[1, 8, 3], [9, 16, 1]]}
    ).policy

    assert start.depth_rule == BatchSizeRule(table=((1, 8, 3), (9, 16, 1)))
    assert LivePolicyConfig().apply(start).depth_rule == start.depth_rule


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (LivePolicyConfig, {"depth_policy": {"name": "acceptance_thresholds", "lower": 2.0}}),
        (LivePolicyConfig, {"max_depth": MAX_DEPTH + 1}),
        (LivePolicyConfig, {"max_wait_ms": float("inf")}),
        (LiveDraftConfig, {"sources": ["mixture"]}),
    ],
)
def test_values_that_can_not_be_meant_are_errors(config: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**values)
