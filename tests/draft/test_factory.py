from pathlib import Path

import pytest
from transformers import PreTrainedModel

from specray.config import DraftConfig, ModelDraftConfig
from specray.draft.factory import make_proposer
from specray.draft.hybrid import HybridProposer
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.errors import InvalidConfigError


def test_prompt_lookup_needs_nothing() -> None:
    assert isinstance(make_proposer(DraftConfig()), PromptLookup)


def test_a_model_is_loaded(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)
    assert isinstance(make_proposer(DraftConfig(method="model", model=model)), ModelProposer)


def test_a_hybrid_has_both(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)
    assert isinstance(make_proposer(DraftConfig(method="hybrid", model=model)), HybridProposer)


def test_a_missing_model_is_a_config_error(tmp_path: Path) -> None:
    model = ModelDraftConfig(model=str(tmp_path / "none"), device="cpu")
    with pytest.raises(InvalidConfigError):
        make_proposer(DraftConfig(method="model", model=model))
