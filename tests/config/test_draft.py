from typing import Any

import pytest
from pydantic import ValidationError

from specray.config import (
    MAX_FAN_OUT,
    CustomDraftConfig,
    DraftConfig,
    ModelDraftConfig,
    PromptLookupConfig,
)


def test_an_empty_range_of_ngrams_names_both_ends() -> None:
    with pytest.raises(ValidationError, match="min_ngram 5 is larger than max_ngram 4; lower it"):
        PromptLookupConfig(min_ngram=5, max_ngram=4)


def test_bounds_of_the_draft_pool_are_known_where_the_file_has_them() -> None:
    scaled = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}}

    assert DraftConfig(deployment_config=scaled).max_replicas == 3
    assert DraftConfig(deployment_config={"num_replicas": 2}).max_replicas is None
    assert DraftConfig(deployment_config={"autoscaling_config": None}).max_replicas is None


def test_only_a_model_drafts_ahead() -> None:
    model = ModelDraftConfig(model="any", fan_out=7)

    assert DraftConfig(method="model", model=model).fan_out == 7
    assert DraftConfig(model=model).fan_out == 0


@pytest.mark.parametrize(
    ("device", "dtype", "most"),
    [
        ("cpu", "float32", MAX_FAN_OUT),
        ("cpu", "auto", MAX_FAN_OUT),
        ("cpu", "bfloat16", 8),
        ("cuda", "float32", 8),
        ("auto", "auto", 8),
    ],
)
def test_many_outcomes_are_drafted_for_where_they_copy_nothing(
    device: Any, dtype: Any, most: int
) -> None:
    model = ModelDraftConfig(model="any", device=device, dtype=dtype)

    assert DraftConfig(method="hybrid", model=model).fan_out == most
    none = model.model_copy(update={"fan_out": 0})
    assert DraftConfig(method="hybrid", model=none).fan_out == 0


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


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (PromptLookupConfig, {"min_ngram": 0}),
        (ModelDraftConfig, {"model": "m", "support": 257}),
        (ModelDraftConfig, {"model": "m", "max_tokens": 0}),
        (ModelDraftConfig, {"model": "m", "fan_out": MAX_FAN_OUT + 1}),
        (ModelDraftConfig, {"model": "m", "fan_out": -1}),
        (ModelDraftConfig, {"model": "m", "device": "tpu"}),
        (ModelDraftConfig, {}),
        (CustomDraftConfig, {"import_path": "no_class"}),
        (CustomDraftConfig, {"import_path": "module:Class()"}),
        (PromptLookupConfig, {"shared_tokens": -1}),
        (DraftConfig, {"method": "model"}),
        (DraftConfig, {"method": "hybrid"}),
        (DraftConfig, {"method": "custom"}),
        (DraftConfig, {"method": "ngram"}),
    ],
)
def test_values_that_can_not_be_meant_are_errors(config: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**values)
