from typing import Any

import pytest
from pydantic import ValidationError

from specray.config import MAX_DEPTH, MAX_WAIT_MS, ObjectiveConfig, SpeculationConfig
from specray.control.hardware import PROFILES
from specray.types import SpeculationPolicy


def test_the_policy_starts_with_the_fixed_limits() -> None:
    config = SpeculationConfig(max_depth=3, max_wait_ms=8.0)

    assert config.policy == SpeculationPolicy(True, 3, 8.0, has_stop_gap=True)
    assert SpeculationConfig().policy == SpeculationPolicy(has_stop_gap=True)


@pytest.mark.parametrize("max_depth", [0, 1, MAX_DEPTH])
def test_every_depth_in_range_is_taken(max_depth: int) -> None:
    assert SpeculationConfig(max_depth=max_depth).policy.max_depth == max_depth


def test_every_profile_can_be_configured_and_no_other() -> None:
    for name in PROFILES:
        assert SpeculationConfig(hardware=name).hardware == name


def test_settings_are_frozen() -> None:
    config = SpeculationConfig()

    with pytest.raises(ValidationError, match="frozen"):
        config.max_depth = 3  # type: ignore[misc]


def test_an_objective_may_be_given_by_its_goal_alone() -> None:
    config = SpeculationConfig.model_validate({"objective": "latency"})

    assert config.objective == ObjectiveConfig(goal="latency")
    assert SpeculationConfig().objective.goal == "throughput"


@pytest.mark.parametrize(
    "objective",
    ["slo", "fast", {"goal": "slo"}, {"goal": "latency", "tpot_ms": 50}, {"draft_cost": 0}],
)
def test_a_faulty_objective_is_refused(objective: Any) -> None:
    with pytest.raises(ValidationError):
        SpeculationConfig.model_validate({"objective": objective})


@pytest.mark.parametrize(
    "values",
    [
        {"max_depth": -1},
        {"max_depth": MAX_DEPTH + 1},
        {"max_depth": 2.5},
        {"max_wait_ms": 0.0},
        {"max_wait_ms": MAX_WAIT_MS + 1},
        {"max_wait_ms": float("nan")},
        {"stall_timeout_s": 0.0},
        {"unknown": 1},
        {"depth_policy": "psychic"},
        {"depth_policy": {"depth": 2}},
        {"depth_policy": {"name": "goodput", "depth": 2}},
        {"depth_policy": {"name": "fixed", "depth": -1}},
        {"depth_policy": {"name": "batch_size_table", "table": [[1, 4]]}},
        {"hardware": "H1000"},
        {"listen_host": "0.0.0.0"},
        {"listen_host": "::"},
        {"listen_host": "0"},
        {"listen_host": "::0"},
        {"listen_host": ""},
    ],
)
def test_values_that_can_not_be_meant_are_errors(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SpeculationConfig(**values)
