import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from specray.config import (
    DraftConfig,
    LiveDraftConfig,
    ModelDraftConfig,
    NgramDraftConfig,
    PromptLookupConfig,
    SimulationConfig,
)
from specray.draft.factory import make_proposer, reconfigure
from specray.draft.hybrid import HybridProposer
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.errors import InvalidConfigError
from specray.types import Commit, OpenSession, SamplingSettings


def test_prompt_lookup_needs_nothing() -> None:
    assert isinstance(make_proposer(DraftConfig()), PromptLookup)


@pytest.mark.parametrize("method", ["ngram", "prompt_lookup"])
def test_what_needs_no_model_starts_without_pytorch(method: str) -> None:
    """Importing it takes most of their start and of their memory."""
    script = f"""
import sys
import specray.serve.draft_server
from specray.config import DraftConfig, NgramDraftConfig
from specray.draft.factory import make_proposer
ngram = NgramDraftConfig(model="bundled:smollm2-135m-instruct-draft")
make_proposer(DraftConfig(method={method!r}, ngram=ngram if {method!r} == "ngram" else None))
print(*sorted({{"torch", "transformers", "vllm", "numba"}} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.stdout.strip(), ran.returncode) == ("", 0), ran.stderr


def test_a_model_gets_as_many_threads_as_cores(
    llama: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", num_threads.append)
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)

    make_proposer(DraftConfig(method="model", model=model))
    assert num_threads == []
    make_proposer(DraftConfig(method="model", model=model, cpus=(0, 1, 2)))
    assert num_threads == [3]


def test_a_tenants_weight_says_how_much_it_may_hold_too() -> None:
    lookup = PromptLookupConfig(max_tokens=10)
    proposer = make_proposer(DraftConfig(prompt_lookup=lookup, weights={"heavy": 4.0}))
    for session_id, tenant in enumerate(("heavy", "heavy", "light", "heavy")):
        proposer.open(OpenSession(session_id, (5, 6, 7), 3, SamplingSettings(), 1, tenant=tenant))

    assert proposer.take_evicted() == [2]


def test_a_model_is_loaded(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)
    assert isinstance(make_proposer(DraftConfig(method="model", model=model)), ModelProposer)


def test_a_hybrid_has_both(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)
    assert isinstance(make_proposer(DraftConfig(method="hybrid", model=model)), HybridProposer)


def test_a_hybrid_answers_from_n_grams_at_once(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    config = DraftConfig(
        method="hybrid",
        model=ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64),
        ngram=NgramDraftConfig(model="bundled:smollm2-135m-instruct-draft"),
    )
    proposer = make_proposer(config)
    prompt = tuple(range(50, 58))
    proposer.open(OpenSession(1, prompt, len(prompt), SamplingSettings(), 3))
    proposer.commit(Commit(1, len(prompt), (60,), 3, sent_at_ns=0))

    (answer,) = [p for p in proposer.propose([1]) if p.position == len(prompt) + 1]

    assert answer.source == "ngram"
    assert answer.token_ids


def test_a_missing_model_is_a_config_error(tmp_path: Path) -> None:
    model = ModelDraftConfig(model=str(tmp_path / "none"), device="cpu")
    with pytest.raises(InvalidConfigError):
        make_proposer(DraftConfig(method="model", model=model))


def test_a_hybrids_sources_change_while_it_runs(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    model = ModelDraftConfig(model=str(tmp_path), device="cpu", max_tokens=64)
    proposer = make_proposer(DraftConfig(method="hybrid", model=model))
    assert isinstance(proposer, HybridProposer)

    reconfigure(proposer, LiveDraftConfig(sources=("model",)))
    assert proposer.sources == {"model"}
    reconfigure(proposer, LiveDraftConfig())
    assert proposer.sources == {"model", "ngram", "prompt_lookup"}


def test_other_drafts_have_no_sources_to_choose_from() -> None:
    with pytest.raises(InvalidConfigError, match="only the draft methods hybrid and ngram"):
        reconfigure(make_proposer(DraftConfig()), LiveDraftConfig(sources=("model",)))


def test_other_live_settings_are_not_the_proposers() -> None:
    reconfigure(make_proposer(DraftConfig()), LiveDraftConfig(simulation=SimulationConfig()))
