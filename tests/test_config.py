from typing import Any

import pytest
from pydantic import ValidationError

from specray.config import (
    MAX_DEPTH,
    MAX_WAIT_MS,
    CustomDraftConfig,
    DraftConfig,
    LivePolicyConfig,
    ModelDraftConfig,
    PromptLookupConfig,
    SpeculationConfig,
    TargetPluginConfig,
)
from specray.types import SpeculationPolicy

START = SpeculationPolicy(is_enabled=True, max_depth=5, max_wait_ms=20.0)


def test_the_policy_starts_with_the_fixed_limits() -> None:
    config = SpeculationConfig(max_depth=3, max_wait_ms=8.0)

    assert config.policy == SpeculationPolicy(True, 3, 8.0)
    assert SpeculationConfig().policy == SpeculationPolicy()


@pytest.mark.parametrize(
    ("live", "policy"),
    [
        ({}, START),
        ({"is_enabled": False}, SpeculationPolicy(False, 5, 20.0)),
        ({"max_depth": 2}, SpeculationPolicy(True, 2, 20.0)),
        ({"max_depth": 0}, SpeculationPolicy(True, 0, 20.0)),
        ({"max_depth": 9}, SpeculationPolicy(True, 5, 20.0)),
        ({"max_wait_ms": 1.5}, SpeculationPolicy(True, 5, 1.5)),
        ({"max_wait_ms": 99.0}, SpeculationPolicy(True, 5, 99.0)),
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
    ],
)
def test_values_that_can_not_be_meant_are_errors(config: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**values)


@pytest.mark.parametrize("max_depth", [0, 1, MAX_DEPTH])
def test_every_depth_in_range_is_taken(max_depth: int) -> None:
    assert SpeculationConfig(max_depth=max_depth).policy.max_depth == max_depth


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
