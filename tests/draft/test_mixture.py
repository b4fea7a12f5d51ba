"""What is mixed into a model's distributions, and that the output stays the target's."""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from specray.config import ModelDraftConfig, PromptLookupConfig
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.hybrid import HybridProposer
from specray.draft.kv_pool import KvLayout
from specray.draft.mixture import Expert, Mixture
from specray.draft.model import ModelProposer
from specray.draft.ngram_model import Opinion
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.session import Session
from specray.types import Commit, OpenSession, Proposal, SamplingSettings
from tests.draft.test_hybrid import (
    ALPHA,
    GREEDY,
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    REPETITIVE,
    SAMPLED,
    Q,
    Scripted,
    answer,
    begin,
    opened,
    probability,
)
from tests.target.distributions import chi_square

NUM_ANSWERS = 500


class _NoCache:
    def store(self) -> None: ...


class Table:
    """A language model that knows the last token only."""

    device, dtype = torch.device("cpu"), torch.float32
    max_positions, layout = 256, KvLayout(1, 1, 1)
    head_token_ids: Tensor | None = None
    copies_rows = False

    def __init__(self, probabilities: np.ndarray = Q) -> None:
        self._logits = torch.from_numpy(probabilities).log().float()
        self.vocab_size = len(probabilities)

    def make_cache(self, rows: Sequence[CachedRow]) -> _NoCache:
        return _NoCache()

    def next_logits(self, new: NewTokens, cache: _NoCache) -> Tensor:
        return self._logits[new.token_ids[np.cumsum(new.counts) - 1]]


class Fixed:
    """Always of one opinion."""

    def __init__(self, token_ids: Sequence[int], probabilities: Sequence[float]) -> None:
        self._opinion = Opinion(np.array(token_ids), np.array(probabilities, np.float32))

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None:
        return self._opinion


class Follower:
    """Tells from the token before what comes next, at some places."""

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None:
        last = [*session.token_ids, *drafted][-1]
        if last == 2:
            return None
        return Opinion(np.array([last + 1]), np.array([0.4 + 0.1 * last], np.float32))


def model(experts: Sequence[Expert], seed: int = 1, fan_out: int = 0) -> ModelProposer:
    mixture = Mixture(experts, NUM_TOKENS, None)
    config = ModelDraftConfig(model="table", max_tokens=8192, fan_out=fan_out)
    return ModelProposer(Table(), config, torch.Generator().manual_seed(seed), mixture)


def hybrid(seed: int = 1) -> HybridProposer:
    lookup = PromptLookup(PromptLookupConfig())
    return HybridProposer(lookup, model([Follower(), lookup], seed))


def dense(proposal: Proposal, place: int) -> np.ndarray:
    assert proposal.distributions is not None
    q = np.zeros(NUM_TOKENS)
    np.add.at(
        q, proposal.distributions.token_ids[place], proposal.distributions.probabilities[place]
    )
    return q


# The mixture


def mixed(experts: Sequence[Expert], head: Tensor | None = None) -> np.ndarray:
    columns = NUM_TOKENS if head is None else len(head)
    logits = torch.full((1, columns), 2.0)
    session = Session(OpenSession(1, (0,), 1, GREEDY, 1))
    logits = Mixture(experts, NUM_TOKENS, head).mix(logits, [session], [[]])
    return logits.softmax(dim=1)[0].numpy()


def test_what_an_expert_leaves_is_the_models() -> None:
    np.testing.assert_allclose(mixed([Fixed([1], [0.4])]), [0.2, 0.6, 0.2], rtol=1e-5)


def test_a_later_expert_is_mixed_into_what_the_others_made() -> None:
    experts = [Fixed([1], [0.4]), Fixed([0, 1], [0.25, 0.25])]
    np.testing.assert_allclose(mixed(experts), [0.35, 0.55, 0.1], rtol=1e-5)


def test_a_token_that_the_head_lacks_leaves_its_share_to_the_model() -> None:
    experts = [Fixed([0, 1], [0.5, 0.4])]
    np.testing.assert_allclose(mixed(experts, torch.tensor([2, 1])), [0.3, 0.7], rtol=1e-5)


def test_a_token_that_only_the_target_knows_leaves_its_share_too() -> None:
    experts = [Fixed([0, 99], [0.5, 0.4])]
    np.testing.assert_allclose(mixed(experts), [2 / 3, 1 / 6, 1 / 6], rtol=1e-5)


def test_greedy_proposals_follow_the_mixture() -> None:
    """The table's own favourite loses to what is added to the others, where something is."""
    favourite = np.eye(NUM_TOKENS)[[0, 0, 0]] * 0.4 + 0.2  # 0.6, 0.2, 0.2
    mixture = Mixture([Follower()], NUM_TOKENS, None)
    config = ModelDraftConfig(model="table", max_tokens=1024)
    proposer = ModelProposer(Table(favourite), config, torch.Generator(), mixture)
    begin(proposer, 1, (2, 2, 0))

    (proposal,) = proposer.propose([1])

    # Behind 0: 0.6 * 0.6 = 0.36 against 0.4 + 0.12; behind 1: 0.3 against 0.5 + 0.1; behind 2: 0.6.
    assert (proposal.token_ids, proposal.source) == ((1, 2, 0), "mixture")


def test_the_own_text_is_mixed_unless_switched_off() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    proposer = HybridProposer(lookup, Scripted())
    session = Session(OpenSession(1, REPETITIVE, 1, GREEDY, 3))
    begin(proposer, 1, REPETITIVE)

    told = lookup.opinion(session, [1, 2])

    assert told is not None
    assert told.token_ids.tolist() == [3]
    assert 0.5 < told.probabilities[0] < 0.9
    assert lookup.opinion(session, [1, 50]) is None
    proposer.sources = frozenset(["model"])
    assert lookup.opinion(session, [1, 2]) is None
    proposer.close(1)
    assert lookup.opinion(session, []) is None


# Losslessness


def test_what_is_mixed_depends_on_nothing_that_is_drawn_later() -> None:
    """Wherever the same tokens came before, the same distribution is shipped."""
    lookup = PromptLookup(PromptLookupConfig())
    proposer = model([Follower(), lookup])
    shipped: dict[tuple[int, ...], np.ndarray] = {}
    for session_id in range(64):
        lookup.open(opened(session_id, PROMPT, SAMPLED))
        begin(proposer, session_id, PROMPT)
        proposer.open(opened(session_id, PROMPT[:-1], SAMPLED))
        proposer.commit(Commit(session_id, len(PROMPT) - 1, PROMPT[-1:], 3, 0))

    for proposal in proposer.propose(range(64)):
        assert proposal.source == "mixture"
        for place in range(3):
            q = dense(proposal, place)
            assert q[proposal.token_ids[place]] > 0
            known = shipped.setdefault(proposal.token_ids[:place], q)
            np.testing.assert_allclose(q, known, atol=1e-6)
    assert len(shipped) > 6
    assert not np.allclose(shipped[()], Q[PROMPT[-1]], atol=0.02)  # something was mixed in


def test_what_is_drafted_ahead_is_mixed_too() -> None:
    proposer = model([Follower()], fan_out=6)
    for session_id, prompt in enumerate([(0, 1, 2), (2, 0), (1,)]):
        proposer.open(opened(session_id, (2, *prompt[:-1]), SAMPLED))
        proposer.commit(Commit(session_id, len(prompt), prompt[-1:], 2, 0))
    proposer.propose(range(3))
    while proposer.work():
        pass

    ahead = proposer.take_ahead()

    assert len(ahead) > 6
    for proposal in ahead:
        assert proposal.source == "mixture"
        for place, last in enumerate((proposal.last_token_id, *proposal.token_ids[:-1])):
            added = 0.4 + 0.1 * last if last < 2 else 0.0
            expected = Q[last] * (1 - added) + added * np.eye(NUM_TOKENS)[(last + 1) % NUM_TOKENS]
            np.testing.assert_allclose(dense(proposal, place), expected, atol=1e-5)


class Peeking(ModelProposer):
    """Breaks the rule: draws anew, from the model alone, where the experts' word was drawn."""

    def __init__(self, mixed: ModelProposer, plain: ModelProposer, favourite: int) -> None:
        self._mixed, self._plain, self._favourite = mixed, plain, favourite

    def open(self, session: OpenSession) -> None:
        self._mixed.open(session)
        self._plain.open(session)

    def commit(self, commit: Commit) -> None:
        self._mixed.commit(commit)
        self._plain.commit(commit)

    def close(self, session_id: int) -> None:
        self._mixed.close(session_id)
        self._plain.close(session_id)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        (drawn,), (other,) = (p.propose(session_ids) for p in (self._mixed, self._plain))
        return [other if self._favourite in drawn.token_ids[:1] else drawn]


def p_value(proposer: HybridProposer | ModelProposer, used: Counter[str], seed: int) -> float:
    rng = np.random.default_rng(seed)
    counts = Counter(answer(proposer, i, used, rng) for i in range(NUM_ANSWERS))
    texts = list(product(range(NUM_TOKENS), repeat=LENGTH))
    expected = [NUM_ANSWERS * probability(text) for text in texts]
    return chi_square(np.array([counts[text] for text in texts]), np.array(expected))


def test_sampled_output_has_the_targets_distribution() -> None:
    used: Counter[str] = Counter()

    assert p_value(hybrid(), used, seed=4) > ALPHA
    assert min(used["mixture"], used["prompt_lookup"]) > 50


def test_a_mixture_by_the_drawn_token_would_show() -> None:
    """The power of the test above."""
    peeking = Peeking(model([Fixed([1], [0.5])], 1), model([Fixed([0], [0.01])], 2), favourite=1)

    assert p_value(peeking, Counter(), seed=5) < ALPHA**2


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, SamplingSettings(0.7, top_p=0.9)])
def test_sessions_of_a_batch_are_mixed_apart(sampling: SamplingSettings) -> None:
    alone, together = model([Follower()], 3), model([Follower()], 3)
    texts = [(0, 1, 2), (2, 2, 0), (1, 1, 1)]
    for session_id, text in enumerate(texts):
        for proposer in (alone, together):
            proposer.open(opened(session_id, text[:-1], sampling))
            proposer.commit(Commit(session_id, 2, text[-1:], 1 + session_id, 0))
    single = [alone.propose([i])[0] for i in range(3)]
    for one, many in zip(single, together.propose(range(3)), strict=True):
        if sampling.is_greedy:
            assert one.token_ids == many.token_ids
        else:
            np.testing.assert_allclose(dense(one, 0), dense(many, 0), atol=1e-6)
