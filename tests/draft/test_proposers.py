"""What the draft service relies on, checked on every proposer."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specray.config import ModelDraftConfig, PromptLookupConfig
from specray.draft.causal_lm import CausalLm
from specray.draft.hybrid import HybridProposer
from specray.draft.llama import LlamaPass
from specray.draft.model import ModelProposer
from specray.draft.ngrams import NgramProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.draft.translation import TranslatedProposer, Translation
from specray.errors import SessionRejectedError
from specray.models.ngrams import NgramModel, NgramOrder, context_keys
from specray.models.vocabulary import SharedTokens
from specray.types import Commit, OpenSession, Proposal, SamplingSettings

PROMPT = (1, 2, 3, 4, 1, 2, 3, 4, 1, 2)
SETTINGS = [SamplingSettings(), SamplingSettings(temperature=1.0, top_p=0.9)]


def lookup(_: PreTrainedModel) -> Proposer:
    return PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))


def model(llama: PreTrainedModel) -> Proposer:
    config = ModelDraftConfig(model="tiny", support=8, max_tokens=1024)
    return ModelProposer(CausalLm(llama), config, torch.Generator().manual_seed(0))


def llama_pass(llama: PreTrainedModel) -> Proposer:
    config = ModelDraftConfig(model="tiny", support=8, max_tokens=1024)
    decoder = LlamaPass(copy.deepcopy(llama))
    return ModelProposer(decoder, config, torch.Generator().manual_seed(0))


def translated(llama: PreTrainedModel) -> Proposer:
    ids = np.arange(100, dtype=np.int32)
    translation = Translation(SharedTokens(ids, ids[::-1]), lambda _: ())
    return TranslatedProposer(model(llama), translation)


def hybrid(llama: PreTrainedModel) -> Proposer:
    return HybridProposer(PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4)), model(llama))


def ngrams(_: PreTrainedModel) -> Proposer:
    """Behind each token either of two others."""
    contexts = np.arange(100)[:, None]
    order = np.argsort(keys := context_keys(contexts))
    table = NgramOrder(
        keys[order],
        np.arange(0, 202, 2, dtype=np.int32),
        np.stack(((order + 1) % 100, (order + 2) % 100), 1).ravel().astype(np.uint16),
        np.tile(np.array([0.6, 0.3], np.float16), 100),
    )
    return NgramProposer(NgramModel([table]), np.random.default_rng(0))


@pytest.fixture(params=[lookup, model, llama_pass, translated, hybrid, ngrams])
def proposer(request: pytest.FixtureRequest, llama: PreTrainedModel) -> Proposer:
    make: Callable[[PreTrainedModel], Proposer] = request.param
    return make(llama)


def opened(session_id: int, sampling: SamplingSettings = SETTINGS[0]) -> OpenSession:
    return OpenSession(session_id, PROMPT, len(PROMPT), sampling, depth=3)


def commit(session_id: int, token_ids: tuple[int, ...] = (3,), depth: int = 3) -> Commit:
    return Commit(session_id, len(PROMPT), token_ids, depth, sent_at_ns=77)


def answers(proposer: Proposer, session_ids: list[int]) -> list[Proposal]:
    """The proposals for the sessions as they are now, without those drafted ahead."""
    answers: dict[int, Proposal] = {}
    while waiting := [i for i in session_ids if i not in answers]:
        for proposal in proposer.propose(waiting):
            answers.setdefault(proposal.session_id, proposal)
    return list(answers.values())


@pytest.mark.parametrize("sampling", SETTINGS, ids=["greedy", "sampled"])
def test_a_proposal_extends_its_last_commit(proposer: Proposer, sampling: SamplingSettings) -> None:
    proposer.open(opened(1, sampling))
    proposer.commit(commit(1, (3, 4)))
    (proposal,) = answers(proposer, [1])
    assert proposal.session_id == 1
    assert (proposal.position, proposal.last_token_id) == (len(PROMPT) + 2, 4)
    assert proposal.commit_sent_at_ns == 77
    assert len(proposal.token_ids) == 3
    if proposal.distributions is not None:
        assert not sampling.is_greedy
        assert len(proposal.distributions) == 3


def test_proposals_come_in_the_order_asked_within_their_depths(proposer: Proposer) -> None:
    for session_id, depth in ((1, 2), (2, 0), (3, 5)):
        proposer.open(opened(session_id))
        proposer.commit(commit(session_id, depth=depth))
    proposals = answers(proposer, [3, 1, 2])
    assert [proposal.session_id for proposal in proposals] == [3, 1, 2]
    assert [len(proposal.token_ids) for proposal in proposals] == [5, 2, 0]


def test_several_commits_add_up(proposer: Proposer) -> None:
    proposer.open(opened(1))
    proposer.commit(commit(1, (3,), depth=0))
    proposer.commit(Commit(1, len(PROMPT) + 1, (4, 1), 2, sent_at_ns=78))
    (proposal,) = answers(proposer, [1])
    assert (proposal.position, proposal.last_token_id) == (len(PROMPT) + 3, 1)
    assert (proposal.commit_sent_at_ns, len(proposal.token_ids)) == (78, 2)


def test_a_missed_commit_loses_the_session(proposer: Proposer) -> None:
    proposer.open(opened(1))
    with pytest.raises(SessionRejectedError, match="reopen"):
        proposer.commit(Commit(1, len(PROMPT) + 1, (3,), 3, sent_at_ns=0))
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(commit(1))


def test_commits_to_unknown_and_closed_sessions_are_rejected(proposer: Proposer) -> None:
    proposer.open(opened(1))
    proposer.close(1)
    proposer.close(1)
    proposer.close(99)
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(commit(1))


def test_opening_again_replaces_the_session(proposer: Proposer) -> None:
    proposer.open(opened(1))
    proposer.commit(commit(1))
    proposer.open(opened(1))
    proposer.commit(commit(1))
    (proposal,) = answers(proposer, [1])
    assert proposal.position == len(PROMPT) + 1


def test_a_session_without_tokens_is_rejected(proposer: Proposer) -> None:
    with pytest.raises(SessionRejectedError, match="without tokens"):
        proposer.open(OpenSession(1, (), 0, SETTINGS[0], 3))


def test_nothing_is_evicted_without_need(proposer: Proposer) -> None:
    proposer.open(opened(1))
    assert not proposer.work()
    assert proposer.take_evicted() == []
    assert answers(proposer, []) == []
