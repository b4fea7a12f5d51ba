from typing import Any

import pytest
from pydantic import ValidationError

from specray.config import (
    MAX_DEPTH,
    MAX_FAN_OUT,
    MAX_WAIT_MS,
    CustomDraftConfig,
    DraftConfig,
    LiveDraftConfig,
    LivePolicyConfig,
    ModelDraftConfig,
    ObjectiveConfig,
    PromptLookupConfig,
    SpeculationConfig,
    TargetPluginConfig,
)
from specray.control.hardware import PROFILES
from specray.types import BatchSizeRule, FixedRule, QpsRule, SpeculationPolicy

START = SpeculationPolicy(is_enabled=True, max_depth=5, max_wait_ms=20.0)


def test_the_policy_starts_with_the_fixed_limits() -> None:
    config = SpeculationConfig(max_depth=3, max_wait_ms=8.0)

    assert config.policy == SpeculationPolicy(True, 3, 8.0, has_stop_gap=True)
    assert SpeculationConfig().policy == SpeculationPolicy(has_stop_gap=True)


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


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (SpeculationConfig, {"max_depth": -1}),
        (SpeculationConfig, {"max_depth": MAX_DEPTH + 1}),
        (SpeculationConfig, {"max_depth": 2.5}),
        (SpeculationConfig, {"max_wait_ms": 0.0}),
        (SpeculationConfig, {"max_wait_ms": MAX_WAIT_MS + 1}),
        (SpeculationConfig, {"max_wait_ms": float("nan")}),
        (SpeculationConfig, {"stall_timeout_s": 0.0}),
        (SpeculationConfig, {"unknown": 1}),
        (SpeculationConfig, {"depth_policy": "psychic"}),
        (SpeculationConfig, {"depth_policy": {"depth": 2}}),
        (SpeculationConfig, {"depth_policy": {"name": "goodput", "depth": 2}}),
        (SpeculationConfig, {"depth_policy": {"name": "fixed", "depth": -1}}),
        (SpeculationConfig, {"depth_policy": {"name": "batch_size_table", "table": [[1, 4]]}}),
        (SpeculationConfig, {"hardware": "H1000"}),
        (LivePolicyConfig, {"depth_policy": {"name": "acceptance_thresholds", "lower": 2.0}}),
        (LivePolicyConfig, {"max_depth": MAX_DEPTH + 1}),
        (LivePolicyConfig, {"max_wait_ms": float("inf")}),
        (PromptLookupConfig, {"min_ngram": 0}),
        (ModelDraftConfig, {"model": "m", "support": 257}),
        (ModelDraftConfig, {"model": "m", "max_tokens": 0}),
        (ModelDraftConfig, {"model": "m", "device": "tpu"}),
        (ModelDraftConfig, {}),
        (CustomDraftConfig, {"import_path": "no_class"}),
        (CustomDraftConfig, {"import_path": "module:Class()"}),
        (PromptLookupConfig, {"shared_tokens": -1}),
        (DraftConfig, {"method": "model"}),
        (DraftConfig, {"method": "hybrid"}),
        (DraftConfig, {"method": "custom"}),
        (DraftConfig, {"method": "ngram"}),
        (LiveDraftConfig, {"sources": ["mixture"]}),
    ],
)
def test_values_that_can_not_be_meant_are_errors(config: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**values)


@pytest.mark.parametrize("max_depth", [0, 1, MAX_DEPTH])
def test_every_depth_in_range_is_taken(max_depth: int) -> None:
    assert SpeculationConfig(max_depth=max_depth).policy.max_depth == max_depth


def test_a_rule_of_the_start_holds_until_a_live_one_comes() -> None:
    start = SpeculationConfig(
        depth_policy={"name": "batch_size_table", "table": [[1, 8, 3], [9, 16, 1]]}
    ).policy

    assert start.depth_rule == BatchSizeRule(table=((1, 8, 3), (9, 16, 1)))
    assert LivePolicyConfig().apply(start).depth_rule == start.depth_rule


def test_every_profile_can_be_configured_and_no_other() -> None:
    for name in PROFILES:
        assert SpeculationConfig(hardware=name).hardware == name


def test_a_plug_in_gets_the_rule_through_json() -> None:
    policy = SpeculationPolicy(depth_rule=FixedRule(depth=2))
    sent = TargetPluginConfig(max_depth=3, policy=policy, trust_draft_distributions=True)

    assert TargetPluginConfig.model_validate(sent.model_dump(mode="json")) == sent


def test_an_empty_range_of_ngrams_names_both_ends() -> None:
    with pytest.raises(ValidationError, match="min_ngram 5 is larger than max_ngram 4; lower it"):
        PromptLookupConfig(min_ngram=5, max_ngram=4)


def test_settings_are_frozen() -> None:
    config = SpeculationConfig()

    with pytest.raises(ValidationError, match="frozen"):
        config.max_depth = 3  # type: ignore[misc]


def test_what_the_plug_ins_are_told_survives_json() -> None:
    plugin = TargetPluginConfig(max_depth=5, policy=START, trust_draft_distributions=True)

    assert TargetPluginConfig.model_validate_json(plugin.model_dump_json()) == plugin


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


def test_bounds_of_the_draft_pool_are_known_where_the_file_has_them() -> None:
    scaled = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}}

    assert DraftConfig(deployment_config=scaled).max_replicas == 3
    assert DraftConfig(deployment_config={"num_replicas": 2}).max_replicas is None
    assert DraftConfig(deployment_config={"autoscaling_config": None}).max_replicas is None


def test_only_a_model_drafts_ahead() -> None:
    model = ModelDraftConfig(model="any", fan_out=7)

    assert DraftConfig(method="model", model=model).fan_out == 7
    default = ModelDraftConfig(model="any")
    assert DraftConfig(method="model", model=default).fan_out == MAX_FAN_OUT
    assert DraftConfig(model=model).fan_out == 0


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_tenants_weight_is_a_positive_number(weight: float) -> None:
    assert DraftConfig(weights={"a": 2.5}).weights == {"a": 2.5}
    with pytest.raises(ValidationError):
        DraftConfig(weights={"a": weight})


def test_n_grams_beside_a_model_with_another_tokenizer_are_refused() -> None:
    model = {"model": "small", "target_tokenizer": "large"}
    ngram = {"model": "small"}
    with pytest.raises(ValidationError, match="leave out `ngram` or `model.target_tokenizer`"):
        DraftConfig.model_validate({"method": "hybrid", "model": model, "ngram": ngram})
    assert DraftConfig.model_validate({"method": "hybrid", "model": model}).uses_ngrams is False
    both = DraftConfig.model_validate({"method": "hybrid", "model": {"model": "s"}, "ngram": ngram})
    assert both.uses_ngrams
