"""vLLM's own drafter is taken as it is, but for what would change the output or take our part."""

from typing import Any

import pytest

from specray.serve.engine_drafter import check_engine_drafter, drafting_config

SOUND = {"method": "eagle3", "model": "m", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    "config",
    [
        SOUND,
        {"method": "ngram", "prompt_lookup_max": 4},
        {"model": "m"},  # vLLM finds out by what method
        SOUND | {"draft_sample_method": "greedy", "rejection_sample_method": "standard"},
        SOUND | {"num_speculative_tokens_per_batch_size": None},
        SOUND | {"num_speculative_tokens": 64},
        {"method": "deepseek_mtp", "num_speculative_tokens": 2},
    ],
)
def test_sound_ones_pass(config: Any) -> None:
    check_engine_drafter(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("eagle3", "must be vLLM's mapping"),
        ([], "must be vLLM's mapping"),
        ({}, "must be vLLM's mapping"),
        ({"method": "custom_class", "model": "my.Proposer"}, "method must be one of eagle, "),
        ({"method": "extract_hidden_states"}, "method must be one of"),
        ({"method": "ngram_gpu"}, "method must be one of"),
        ({"method": "egale3"}, "method must be one of"),
        ({"method": ["eagle3"]}, "method must be one of"),
        ({"method": 3}, "method must be one of"),
        ({"method": "draft_model", "model": 3}, "model must be a folder"),
        ({"method": "mtp"}, "num_speculative_tokens is missing"),
        (SOUND | {"rejection-sample-method": "synthetic"}, "write rejection-sample-method with"),
        (SOUND | {"draft_sample_method": "probabilistic"}, "draft_sample_method must be greedy"),
        (SOUND | {"rejection_sample_method": "synthetic"}, "rejection_sample_method must be"),
        (SOUND | {"synthetic_acceptance_rates": [0.5]}, "synthetic_acceptance_rates must be left"),
        (
            SOUND | {"num_speculative_tokens_per_batch_size": [(1, 8, 3)]},
            "per_batch_size must be left out: .*batch_size_table",
        ),
        (SOUND | {"num_speculative_tokens": 0}, "num_speculative_tokens must be from 1 to 64"),
        (SOUND | {"num_speculative_tokens": 65}, "num_speculative_tokens must be from 1 to 64"),
        (SOUND | {"num_speculative_tokens": "3"}, "num_speculative_tokens must be from 1 to 64"),
        (SOUND | {"num_speculative_tokens": True}, "num_speculative_tokens must be from 1 to 64"),
    ],
)
def test_others_are_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"engine_kwargs\.speculative_config.*{message}"):
        check_engine_drafter(config)


def test_the_depth_is_ours_unless_it_is_given() -> None:
    assert drafting_config({"method": "ngram"}, 5)["num_speculative_tokens"] == 5
    assert drafting_config(SOUND, 5) == SOUND
