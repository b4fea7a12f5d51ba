"""A draft that thinks in tokens of its own."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from specray.config import DraftConfig, ModelDraftConfig
from specray.draft.factory import make_proposer
from specray.draft.translation import TranslatedProposer, Translation, translate
from specray.errors import SessionRejectedError
from specray.models.vocabulary import SharedTokens, Vocabulary, shared_tokens
from specray.sampling.reference import verify
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    SamplingSettings,
    TruncatedDistributions,
)
from tests.tokenizers_util import byte_level, sentencepiece

# Of the target's tokens 0 to 9 the even ones are shared; the draft writes 2 i as 50 - i.
SHARED = SharedTokens(np.arange(0, 10, 2, dtype=np.int32), 50 - np.arange(5, dtype=np.int32))
Q = np.array([0.5, 0.3, 0.2, 0.0], np.float32)


def respell(token_ids: Sequence[int]) -> list[int]:
    """An unshared token becomes two of the draft's; 9 is half a character and becomes none."""
    return [part for i in token_ids if i != 9 for part in (100 + i, 200 + i)]


class Recorder:
    """A proposer that knows what reached it, and proposes draws from Q over its shared tokens."""

    def __init__(self, seed: int = 0) -> None:
        self.opened: list[OpenSession] = []
        self.commits: list[Commit] = []
        self.closed: list[int] = []
        self.evicted: list[int] = []
        self.length = 0
        self._rng = np.random.default_rng(seed)

    def open(self, session: OpenSession) -> None:
        self.opened.append(session)
        self.length = len(session.token_ids)

    def commit(self, commit: Commit) -> None:
        if commit.position != self.length:
            raise SessionRejectedError("missed")
        self.commits.append(commit)
        self.length += len(commit.token_ids)

    def close(self, session_id: int) -> None:
        self.closed.append(session_id)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        support = np.array([[50, 49, 47, 0]], np.int32)  # 0 pads
        drawn = int(self._rng.choice(support[0], p=Q))
        q = TruncatedDistributions(support, Q[None])
        return [Proposal(i, self.length, 0, (drawn,), "model", q, 77) for i in session_ids]

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        evicted, self.evicted = self.evicted, []
        return evicted


def follow(prompt: tuple[int, ...]) -> tuple[TranslatedProposer, Recorder]:
    recorder = Recorder()
    proposer = TranslatedProposer(recorder, Translation(SHARED, respell))
    proposer.open(OpenSession(1, prompt, len(prompt) - 1, SamplingSettings(1.0), 3))
    return proposer, recorder


def test_shared_tokens_are_mapped_and_others_read_as_their_text() -> None:
    proposer, recorder = follow((0, 2, 3, 9, 4))
    assert recorder.opened[0].token_ids == (50, 49, 103, 203, 48)
    proposer.commit(Commit(1, 5, (5, 7, 8), 3, 1))
    assert recorder.commits[0].position == 5
    assert recorder.commits[0].token_ids == (105, 205, 107, 207, 46)
    proposer.commit(Commit(1, 8, (9,), 3, 1))
    assert recorder.commits[1].position == 10
    assert recorder.commits[1].token_ids == ()


def test_a_proposal_comes_back_in_the_targets_tokens_and_at_its_length() -> None:
    proposer, _ = follow((0, 2, 3))
    proposer.commit(Commit(1, 3, (7, 9), 3, 1))
    (proposal,) = proposer.propose([1])
    assert (proposal.position, proposal.last_token_id) == (5, 9)
    assert proposal.token_ids[0] in (0, 2, 6)
    assert proposal.distributions is not None
    assert proposal.distributions.token_ids.tolist() == [[0, 2, 6, 0]]
    assert proposal.commit_sent_at_ns == 77


def test_a_missed_commit_ends_the_session() -> None:
    proposer, _ = follow((0, 2))
    with pytest.raises(SessionRejectedError):
        proposer.commit(Commit(1, 3, (4,), 3, 1))
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(Commit(1, 2, (4,), 3, 1))


def test_closed_and_evicted_sessions_are_forgotten() -> None:
    proposer, recorder = follow((0, 2))
    proposer.open(OpenSession(2, (4,), 1, SamplingSettings(), 3))
    proposer.close(1)
    recorder.evicted = [2]
    assert proposer.take_evicted() == [2]
    assert recorder.closed == [1]
    for session_id in (1, 2):
        with pytest.raises(SessionRejectedError, match="not open"):
            proposer.commit(Commit(session_id, 2, (4,), 3, 1))


def test_verification_keeps_the_targets_distribution() -> None:
    """False alarm: 1e-6. The target also wants tokens that the draft can't name."""
    p = np.array([0.1, 0.25, 0.3, 0.05, 0.0, 0.1, 0.1, 0.05, 0.05, 0.0])
    proposer, _ = follow((0, 2))
    rng = np.random.default_rng(1)
    counts = np.zeros(10)
    for _ in range(20_000):
        (proposal,) = proposer.propose([1])
        verdict = verify(np.stack([p, p]), proposal.token_ids, proposal.distributions, rng)
        counts[verdict.token_ids[0]] += 1
    possible = p > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], 20_000 * p[possible]).pvalue > 1e-6


def test_a_wrong_distribution_would_be_seen() -> None:
    """The power of the test above: q as the draft's ids, not the target's."""
    p = np.array([0.1, 0.25, 0.3, 0.05, 0.0, 0.1, 0.1, 0.05, 0.05, 0.0])
    proposer, _ = follow((0, 2))
    rng = np.random.default_rng(1)
    counts = np.zeros(10)
    for _ in range(20_000):
        (proposal,) = proposer.propose([1])
        assert proposal.distributions is not None
        wrong = TruncatedDistributions(np.array([[2, 6, 0, 0]], np.int32), Q[None])
        counts[verify(np.stack([p, p]), proposal.token_ids, wrong, rng).token_ids[0]] += 1
    possible = p > 0
    assert chisquare(counts[possible], 20_000 * p[possible]).pvalue < 1e-6


def test_a_real_draft_proposes_shared_tokens_only(tmp_path: Path) -> None:
    target = byte_level(tmp_path / "target", ["the", "cat"], ["<end>"])
    draft = sentencepiece(tmp_path / "draft", ["the", "cow"], ["<stop>"])
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=300,  # padded
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            initializer_range=0.5,
        )
    ).save_pretrained(draft)
    config = ModelDraftConfig(model=draft, target_tokenizer=target, device="cpu", max_tokens=512)
    proposer = make_proposer(DraftConfig(method="model", model=config))
    prompt = Vocabulary(target).encode("the cat")
    end = Vocabulary(target).by_spelling()["<end>"]
    proposed: set[int] = set()
    for session_id in range(20):
        opened = OpenSession(session_id, (*prompt, end), len(prompt), SamplingSettings(1.0), 8)
        proposer.open(opened)
        proposer.commit(Commit(session_id, len(prompt) + 1, (prompt[0],), 8, 1))
        (proposal,) = proposer.propose([session_id])
        assert (proposal.position, proposal.last_token_id) == (len(prompt) + 2, prompt[0])
        assert proposal.distributions is not None
        assert len(proposal.token_ids) == 8
        proposed |= set(proposal.token_ids)
    shared = shared_tokens(Vocabulary(target), Vocabulary(draft))
    assert len(proposed) > 20
    assert proposed <= set(shared.target_ids.tolist())


class Ahead(Recorder):
    """Drafts ahead: one accepted token, and a shared one added."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: list[tuple[int, int]] = []

    def take_ahead(self) -> list[Proposal]:
        return [Proposal(i, self.length + 2, 47, (50, 49), "model") for i in (1, 7)]

    def worked_for(self) -> Collection[int]:
        return (1, 7)

    def leave_out(self, session_id: int, outcomes: Collection[tuple[int, int]]) -> None:
        assert session_id == 1
        self.left_out += outcomes


def test_what_is_drafted_ahead_is_translated_with_its_outcome() -> None:
    proposer = TranslatedProposer(Ahead(), Translation(SHARED, respell))
    proposer.open(OpenSession(1, (0, 3), 1, SamplingSettings(1.0), 3))  # 3 is read as two tokens
    (proposal,) = proposer.take_ahead()  # nobody has opened session 7
    assert (proposal.position, proposal.last_token_id) == (4, 6)
    assert proposal.token_ids == (0, 2)
    assert proposer.worked_for() == (1, 7)


def test_outcomes_are_left_out_in_the_drafts_tokens() -> None:
    ahead = Ahead()
    proposer = TranslatedProposer(ahead, Translation(SHARED, respell))
    proposer.open(OpenSession(1, (0, 3), 1, SamplingSettings(1.0), 3))
    proposer.leave_out(1, [(4, 6), (5, 3)])  # the draft has no such token as 3
    proposer.leave_out(2, [(4, 6)])
    assert ahead.left_out == [(5, 47)]


class Following(Ahead):
    """Knows when it is told that its target has nothing of what it sent."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped_at: list[int] = []

    def follow(self, session_id: int, token_ids: Sequence[int]) -> None:
        pass

    def drop_ahead(self, session_id: int) -> None:
        self.dropped_at.append(len(self.commits))

    def is_answered(self, session_id: int) -> bool:
        return False

    def take_partial(self, session_id: int) -> Proposal | None:
        return None


def test_what_was_drafted_ahead_of_tokens_that_only_the_target_has_is_dropped() -> None:
    """In the draft's tokens a commit may agree with a proposal that the target could not accept."""
    following = Following()
    proposer = TranslatedProposer(following, Translation(SHARED, respell))
    proposer.open(OpenSession(1, (0, 2), 1, SamplingSettings(1.0), 3))
    for position, token_id in enumerate((2, 3, 4), start=2):
        proposer.commit(Commit(1, position, (token_id,), 3, 1))
    assert following.dropped_at == [1]


def test_a_part_of_a_character_is_read_as_something(tmp_path: Path) -> None:
    """A commit that adds nothing ends a session."""
    ((letters, _),) = ByteLevel(add_prefix_space=False).pre_tokenize_str("\N{GRINNING FACE}")
    target = Vocabulary(byte_level(tmp_path / "target", ["the", letters[:2]], []))
    draft = Vocabulary(sentencepiece(tmp_path / "draft", ["the"], []))
    half, *_ = target.encode("\N{GRINNING FACE}")
    read = translate(target, draft).read((half,))
    assert target.spell([half]) == ""
    assert draft.spell(read) == "\N{REPLACEMENT CHARACTER}"


def test_a_proposer_need_not_draft_ahead() -> None:
    proposer, _ = follow((0, 2))
    proposer.leave_out(1, [(4, 6)])
    assert proposer.take_ahead() == []
