"""The cached, batched draft against the same model run from scratch on the whole text."""

import random
import weakref

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from specray.config import ModelDraftConfig
from specray.draft.causal_lm import CausalLm
from specray.draft.language_model import LanguageModel
from specray.draft.model import ModelProposer
from specray.errors import InvalidConfigError, SessionRejectedError
from specray.sampling.truncation import BatchSampling, truncate
from specray.types import Commit, OpenSession, Proposal, SamplingSettings
from tests.draft.tiny_models import MAX_POSITIONS, VOCAB_SIZE, Pair

GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=0.8, top_k=20, top_p=0.9)


def proposer_of(model: LanguageModel, support: int = 8, **limits: int) -> ModelProposer:
    config = ModelDraftConfig(model="tiny", support=support, **limits)
    return ModelProposer(model, config, torch.Generator().manual_seed(1))


def scratch_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]


def scratch_greedy(model: PreTrainedModel, token_ids: list[int], depth: int) -> tuple[int, ...]:
    token_ids = list(token_ids)
    for _ in range(depth):
        token_ids.append(int(scratch_logits(model, token_ids).argmax()))
    return tuple(token_ids[len(token_ids) - depth :])


class Requests:
    """Requests as the target sees them, mirrored into a proposer's sessions."""

    def __init__(self, proposer: ModelProposer, seed: int) -> None:
        self.proposer = proposer
        self.texts: dict[int, list[int]] = {}
        self.random = random.Random(seed)

    def open(
        self,
        session_id: int,
        length: int,
        sampling: SamplingSettings = GREEDY,
        tenant: str = "",
    ) -> None:
        self.texts[session_id] = [self.random.randrange(VOCAB_SIZE) for _ in range(length)]
        self.reopen(session_id, sampling, tenant)

    def reopen(
        self, session_id: int, sampling: SamplingSettings = GREEDY, tenant: str = ""
    ) -> None:
        text = tuple(self.texts[session_id])
        self.proposer.open(
            OpenSession(session_id, text, len(text), sampling, depth=0, tenant=tenant)
        )

    def finish_work(self) -> None:
        while self.proposer.work():
            pass

    def commit(self, session_id: int, token_ids: tuple[int, ...], depth: int) -> None:
        text = self.texts[session_id]
        self.proposer.commit(Commit(session_id, len(text), token_ids, depth, sent_at_ns=5))
        text += token_ids

    def verify(self, proposal: Proposal, num_accepted: int, depth: int) -> None:
        """Commits a prefix of the proposal and a token that is not the proposed one."""
        accepted = proposal.token_ids[:num_accepted]
        correction = self.random.randrange(VOCAB_SIZE)
        self.commit(proposal.session_id, (*accepted, correction), depth)


def test_greedy_drafts_equal_the_model_without_cache(any_model: Pair) -> None:
    requests = Requests(proposer_of(any_model.model, max_sessions=8, max_tokens=2048), seed=3)
    for session_id, length in enumerate((1, 3, 17, 40)):
        requests.open(session_id, length)
        requests.commit(session_id, (session_id,), depth=4)
    for turn in range(12):
        batch = requests.random.sample(sorted(requests.texts), requests.random.randint(1, 4))
        for proposal in requests.proposer.propose(batch):
            text = requests.texts[proposal.session_id]
            depth = len(proposal.token_ids)
            assert proposal.token_ids == scratch_greedy(any_model.reference, text, depth)
            assert (proposal.position, proposal.last_token_id) == (len(text), text[-1])
            assert proposal.distributions is None
            requests.verify(proposal, turn % (depth + 1), depth=requests.random.randint(1, 5))


def test_each_session_is_drafted_to_its_own_depth(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model), seed=4)
    for session_id, depth in enumerate((2, 0, 5, 1)):
        requests.open(session_id, 6 + session_id)
        requests.commit(session_id, (9,), depth)
    proposals = requests.proposer.propose([0, 1, 2, 3])
    assert [len(proposal.token_ids) for proposal in proposals] == [2, 0, 5, 1]
    for proposal in proposals:
        text = requests.texts[proposal.session_id]
        assert proposal.token_ids == scratch_greedy(
            llama_pass.reference, text, len(proposal.token_ids)
        )


def test_a_session_far_behind_catches_up(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model), seed=5)
    requests.open(0, 4)
    requests.open(1, 4)
    for _ in range(60):
        requests.commit(0, (requests.random.randrange(VOCAB_SIZE),), depth=0)
    requests.commit(0, (1,), depth=3)
    requests.commit(1, (1,), depth=3)
    for proposal in requests.proposer.propose([1, 0]):
        assert proposal.token_ids == scratch_greedy(
            llama_pass.reference, requests.texts[proposal.session_id], 3
        )


def test_a_long_prefill_is_done_in_pieces(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model), seed=13)
    requests.open(0, 20)
    requests.open(1, 150)
    for session_id in (0, 1):
        requests.commit(session_id, (1,), depth=3)
    ready, behind = requests.proposer.propose([0, 1])
    assert ready.token_ids == scratch_greedy(llama_pass.reference, requests.texts[0], 3)
    assert (behind.token_ids, behind.position) == ((), 151)
    for session_id in (2, 3):
        requests.open(session_id, 150)
    requests.proposer.close(2)
    requests.finish_work()
    requests.commit(3, (1,), depth=3)
    for proposal in requests.proposer.propose([1, 3]):
        text = requests.texts[proposal.session_id]
        assert proposal.token_ids == scratch_greedy(llama_pass.reference, text, 3)


def test_a_session_that_nobody_asks_for_is_followed_all_the_same(llama_pass: Pair) -> None:
    """Else its first proposal after a pause would be empty, or late."""
    requests = Requests(proposer_of(llama_pass.model), seed=6)
    requests.open(1, 20)
    for token_id in range(60):
        requests.commit(1, (token_id,), depth=0)
        requests.finish_work()
    requests.commit(1, (1,), depth=3)
    (proposal,) = requests.proposer.propose([1])
    assert proposal.token_ids == scratch_greedy(llama_pass.reference, requests.texts[1], 3)


def test_the_idlest_session_is_evicted_and_can_be_reopened(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_sessions=2), seed=6)
    for session_id in (0, 1):
        requests.open(session_id, 10)
        requests.commit(session_id, (1,), depth=3)
    requests.proposer.propose([0])
    requests.open(2, 10)
    assert requests.proposer.take_evicted() == [1]
    assert requests.proposer.take_evicted() == []
    with pytest.raises(SessionRejectedError, match="not open"):
        requests.proposer.commit(Commit(1, 11, (1,), 3, 0))
    requests.reopen(1)
    assert requests.proposer.take_evicted() == [0]
    requests.commit(1, (2,), depth=3)
    (proposal,) = requests.proposer.propose([1])
    assert proposal.token_ids == scratch_greedy(llama_pass.reference, requests.texts[1], 3)


def test_a_session_that_another_source_answers_is_not_idle(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_sessions=2), seed=6)
    for session_id in (0, 1):
        requests.open(session_id, 10)
    requests.commit(0, (1,), depth=3)
    requests.proposer.follow(0, (4, 5, 6))
    requests.open(2, 10)

    assert requests.proposer.take_evicted() == [1]


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0])
def test_a_temperature_that_is_none_is_rejected(llama_pass: Pair, temperature: float) -> None:
    requests = Requests(proposer_of(llama_pass.model), seed=6)

    with pytest.raises(SessionRejectedError, match="temperature"):
        requests.open(0, 10, SamplingSettings(temperature))


def test_memory_is_bounded_by_tokens(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_tokens=96), seed=7)
    requests.open(0, 40)
    requests.open(1, 40)
    assert requests.proposer.take_evicted() == []
    requests.open(2, 30)
    assert requests.proposer.take_evicted() == [0]


def test_a_tenants_many_sessions_leave_another_its_place(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_sessions=4), seed=7)
    requests.open(0, 10, tenant="modest")  # waits in a target's queue
    for session_id in range(1, 9):
        requests.open(session_id, 10, tenant="greedy")

    assert requests.proposer.take_evicted() == [1, 2, 3, 4, 5]
    requests.open(9, 10, tenant="modest")
    assert requests.proposer.take_evicted() == [6]


def test_a_tenants_many_sessions_leave_another_its_memory(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_tokens=96), seed=7)
    requests.open(0, 40, tenant="modest")
    for session_id in range(1, 5):
        requests.open(session_id, 20, tenant="greedy")
    assert requests.proposer.take_evicted() == [1, 2, 3]

    requests.commit(4, tuple(range(30)), depth=3)  # more than there is left of the memory
    assert requests.proposer.take_evicted() == []
    assert [p.token_ids for p in requests.proposer.propose([4])] == [()]
    assert requests.proposer.take_evicted() == []


def test_sessions_of_one_batch_do_not_evict_each_other(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_tokens=64), seed=8)
    for session_id in (0, 1):
        requests.open(session_id, 30)
        requests.commit(session_id, (1,), depth=8)
    first, second = requests.proposer.propose([0, 1])
    assert (len(first.token_ids), len(second.token_ids)) == (0, 0)  # both would need a block more
    assert requests.proposer.take_evicted() == []
    requests.proposer.close(0)
    (again,) = requests.proposer.propose([1])
    assert again.token_ids == scratch_greedy(llama_pass.reference, requests.texts[1], 8)


def test_nothing_is_proposed_beyond_the_models_positions(any_model: Pair) -> None:
    requests = Requests(proposer_of(any_model.model), seed=9)
    requests.open(0, MAX_POSITIONS - 2)
    requests.open(1, MAX_POSITIONS + 5)
    requests.finish_work()
    for session_id in (0, 1):
        requests.commit(session_id, (1,), depth=4)
    near, beyond = requests.proposer.propose([0, 1])
    assert near.token_ids == scratch_greedy(any_model.reference, requests.texts[0], 2)
    assert beyond.token_ids == ()
    requests.commit(0, (1, 1, 1, 1, 1), depth=4)
    assert requests.proposer.propose([0])[0].token_ids == ()


def test_foreign_token_ids_are_rejected(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model), seed=10)
    with pytest.raises(SessionRejectedError, match="vocabulary of 100"):
        requests.proposer.open(OpenSession(1, (5, VOCAB_SIZE), 2, GREEDY, 3))
    requests.open(2, 5)
    with pytest.raises(SessionRejectedError, match="vocabulary of 100"):
        requests.proposer.commit(Commit(2, 5, (VOCAB_SIZE,), 3, 0))


def test_sampled_drafts_ship_the_distributions_they_were_drawn_from(
    any_model: Pair,
) -> None:
    requests = Requests(proposer_of(any_model.model, support=8), seed=11)
    requests.open(0, 12, SAMPLED)
    requests.open(1, 5, GREEDY)
    for turn in range(6):
        for session_id in (0, 1):
            requests.commit(session_id, (turn,), depth=3)
        sampled, greedy = requests.proposer.propose([0, 1])
        assert greedy.distributions is None
        assert greedy.token_ids == scratch_greedy(any_model.reference, requests.texts[1], 3)
        assert sampled.distributions is not None
        text = list(requests.texts[0])
        for position, token_id in enumerate(sampled.token_ids):
            logits = scratch_logits(any_model.reference, text).unsqueeze(0)
            expected = truncate(logits, BatchSampling.of([SAMPLED], torch.device("cpu")), 8)
            shipped = sampled.distributions.token_ids[position]
            np.testing.assert_array_equal(shipped, expected.token_ids[0])
            np.testing.assert_allclose(
                sampled.distributions.probabilities[position],
                expected.probabilities[0],
                atol=2e-5,
            )
            assert token_id in shipped[sampled.distributions.probabilities[position] > 0]
            text.append(token_id)


def test_sampled_drafts_follow_their_distributions(llama_pass: Pair) -> None:
    requests = Requests(proposer_of(llama_pass.model, support=8, fan_out=0), seed=12)
    num_sessions = 64
    for session_id in range(num_sessions):
        requests.texts[session_id] = [3, 1, 4, 1, 5]
        requests.reopen(session_id, SAMPLED)
        requests.commit(session_id, (9,), depth=1)
    drawn = [p for _ in range(32) for p in requests.proposer.propose(range(num_sessions))]
    first = drawn[0].distributions
    assert first is not None
    support = first.probabilities[0] > 0
    counts = [sum(p.token_ids == (int(i),) for p in drawn) for i in first.token_ids[0][support]]
    assert sum(counts) == len(drawn) == 2048
    expected = len(drawn) * first.probabilities[0][support].astype(float)
    assert chisquare(counts, expected * len(drawn) / expected.sum()).pvalue > 1e-4


def test_models_without_full_attention_are_refused() -> None:
    small = {"vocab_size": 10, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    sliding = MistralConfig(**small, **heads, sliding_window=4, attn_implementation="sdpa")
    with pytest.raises(InvalidConfigError, match="sliding window"):
        CausalLm(MistralForCausalLM(sliding))
    eager = LlamaConfig(**small, **heads, attn_implementation="eager")
    with pytest.raises(InvalidConfigError, match="sdpa"):
        CausalLm(LlamaForCausalLM(eager))
    t5 = T5Config(vocab_size=10, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(InvalidConfigError, match="can't be a draft"):
        CausalLm(T5ForConditionalGeneration(t5))


def test_an_evicted_session_frees_its_memory_at_once_also_while_its_prompt_is_read(
    llama_pass: Pair,
) -> None:
    """Else a burst of long prompts would hold all of theirs, whatever `max_tokens` says."""
    requests = Requests(proposer_of(llama_pass.model, max_tokens=160), seed=5)
    requests.open(1, 150)
    session = requests.proposer._store.get(1)
    assert session is not None
    assert session.num_uncached > 0  # the rest of it is left to `work`
    states = weakref.ref(session.states)
    del session

    requests.open(2, 150)

    assert requests.proposer.take_evicted() == [1]
    assert states() is None


def test_where_the_device_is_short_the_idlest_session_makes_room(
    llama_pass: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(proposer_of(llama_pass.model, max_tokens=2048), seed=5)
    requests.open(1, 40)
    requests.finish_work()
    empty, refused = torch.empty, [torch.OutOfMemoryError("no")]

    def short_once(*args: object, **kwargs: object) -> torch.Tensor:
        is_large = isinstance(args[0], tuple) and args[0][2] > 0
        if is_large and refused:
            raise refused.pop()
        return empty(*args, **kwargs)

    with monkeypatch.context() as short:
        short.setattr(torch, "empty", short_once)
        requests.open(2, 40)

    assert requests.proposer.take_evicted() == [1]
    requests.commit(2, (9,), depth=3)
    (proposal,) = requests.proposer.propose([2])
    assert len(proposal.token_ids) == 3
