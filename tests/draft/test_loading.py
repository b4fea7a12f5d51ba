import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import PreTrainedModel

from specray.config import ModelDraftConfig
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.causal_lm import CausalLm
from specray.draft.language_model import LanguageModel
from specray.draft.llama import LlamaPass
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.errors import InvalidConfigError
from specray.models import cuda
from specray.models.draft_layers import DRAFT_FILE
from specray.sampling.truncation import BatchSampling, truncate
from specray.types import Commit, OpenSession, SamplingSettings
from tests.draft.tiny_models import MAX_POSITIONS, VOCAB_SIZE, tiny_gpt2

HEAD = [int(i) for i in np.random.default_rng(3).permutation(VOCAB_SIZE)[:40]]
GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=0.7, top_k=20, top_p=0.9)
SUPPORT = 8
PROMPT = (3, 1, 4, 1, 5)


@pytest.fixture(params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, llama: PreTrainedModel, tmp_path: Path) -> Path:
    model = llama if request.param == "llama" else tiny_gpt2()
    model.save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path, **settings: object) -> LanguageModel:
    return load_language_model(str(folder), ModelDraftConfig(model="x", device="cpu", **settings))


def test_the_device_is_prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(cuda, "prepare", told.append)
    load(folder)
    assert told == ["cpu"]


def trim(folder: Path) -> None:
    (folder / DRAFT_FILE).write_text(json.dumps({"head_token_ids": HEAD}))


def proposer_of(model: LanguageModel, num_sessions: int, sampling: SamplingSettings, depth: int):
    """Its sessions all go on from PROMPT and 9."""
    config = ModelDraftConfig(model="x", support=SUPPORT, max_sessions=num_sessions)
    proposer = ModelProposer(model, config, torch.Generator().manual_seed(1))
    for session_id in range(num_sessions):
        proposer.open(OpenSession(session_id, PROMPT, len(PROMPT), sampling, depth))
        proposer.commit(Commit(session_id, len(PROMPT), (9,), depth, 0))
    return proposer


def logits_after(model: LanguageModel, token_ids: tuple[int, ...]) -> torch.Tensor:
    """From scratch, [columns]."""
    num_layers, num_heads, dim = model.layout
    length = len(token_ids)
    states = torch.empty(num_layers, 2 * num_heads, length, dim)
    cache = model.make_cache([CachedRow(states, 0, length)])
    new = NewTokens(torch.tensor(token_ids), torch.arange(length), [length], [length])
    return model.next_logits(new, cache)[0]


def test_a_folder_becomes_a_draft(folder: Path) -> None:
    model = load(folder)
    is_llama = json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert isinstance(model, LlamaPass if is_llama else CausalLm)
    assert (model.vocab_size, model.max_positions) == (VOCAB_SIZE, MAX_POSITIONS)
    assert model.dtype == torch.float32
    assert model.head_token_ids is None


def test_what_can_not_be_loaded_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="can't be loaded"):
        load(tmp_path / "nothing")


def test_weights_are_int8_unless_told_otherwise(folder: Path) -> None:
    exact = logits_after(load(folder, quantization="none"), PROMPT)
    automatic = logits_after(load(folder), PROMPT)
    assert torch.equal(automatic, logits_after(load(folder, quantization="int8"), PROMPT))
    assert 0 < (automatic - exact).norm() < 0.05 * exact.norm()
    assert automatic.argmax() == exact.argmax()


def test_int8_is_refused_where_there_are_no_kernels(folder: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"quantization int8 .* not for cpu and bfloat16"):
        load(folder, quantization="int8", dtype="bfloat16")
    assert load(folder, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_trimmed_head_chooses_among_its_tokens(folder: Path, quantization: str) -> None:
    full = load(folder, quantization=quantization)
    trim(folder)
    (proposal,) = proposer_of(load(folder, quantization=quantization), 1, GREEDY, 4).propose([0])
    text = (*PROMPT, 9)
    for token_id in proposal.token_ids:
        logits = logits_after(full, text)
        assert token_id == HEAD[int(logits[HEAD].argmax())]
        text = (*text, token_id)
    assert len(proposal.token_ids) == 4
    assert proposal.distributions is None


def test_head_tokens_caps_the_list(folder: Path) -> None:
    trim(folder)
    model = load(folder, head_tokens=12)
    assert model.head_token_ids.tolist() == HEAD[:12]
    proposals = proposer_of(model, 30, SamplingSettings(temperature=5.0), 4).propose(range(30))
    assert {i for proposal in proposals for i in proposal.token_ids} <= set(HEAD[:12])


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_trimmed_head_ships_what_it_draws_from(folder: Path, quantization: str) -> None:
    full = load(folder, quantization=quantization)
    trim(folder)
    proposer = proposer_of(load(folder, quantization=quantization), 1, SAMPLED, 4)
    (proposal,) = proposer.propose([0])
    text = (*PROMPT, 9)
    for position, token_id in enumerate(proposal.token_ids):
        logits = logits_after(full, text)[HEAD].unsqueeze(0)
        expected = truncate(logits, BatchSampling.of([SAMPLED], logits.device), SUPPORT)
        is_kept = expected.probabilities[0] > 0
        token_ids = torch.tensor(HEAD)[expected.token_ids[0]].where(is_kept, 0)
        shipped = proposal.distributions
        np.testing.assert_array_equal(shipped.token_ids[position], token_ids)
        np.testing.assert_allclose(
            shipped.probabilities[position], expected.probabilities[0], atol=2e-5
        )
        assert token_id in token_ids[is_kept]
        text = (*text, token_id)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_trimmed_heads_draws_follow_what_it_ships(folder: Path, quantization: str) -> None:
    trim(folder)
    proposer = proposer_of(load(folder, quantization=quantization), 64, SAMPLED, 1)
    proposals = [p for _ in range(24) for p in proposer.propose(range(64))]
    shipped = proposals[0].distributions.probabilities[0].astype(float)
    token_ids = proposals[0].distributions.token_ids[0][shipped > 0]
    drawn = [proposal.token_ids[0] for proposal in proposals]
    counts = [drawn.count(int(token_id)) for token_id in token_ids]
    assert sum(counts) == len(drawn)
    expected = shipped[shipped > 0] * (len(drawn) / shipped.sum())
    assert chisquare(counts, expected).pvalue > 1e-4
