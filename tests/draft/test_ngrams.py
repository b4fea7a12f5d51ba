"""The n-gram model's file, what is proposed from it, and that the output stays the target's."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specray.config import MAX_DEPTH, DraftConfig, LiveDraftConfig, PromptLookupConfig
from specray.draft.factory import make_proposer, reconfigure
from specray.draft.hybrid import HybridProposer
from specray.draft.ngrams import NgramProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.errors import InvalidConfigError, SessionRejectedError
from specray.models.ngrams import NGRAM_FILE, NgramModel, load_ngrams
from specray.sampling.reference import verify
from specray.sampling.truncation import BatchSampling, truncate
from specray.types import Commit, Proposal, SamplingSettings
from tests.draft.test_hybrid import (
    ALPHA,
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    REPETITIVE,
    SAMPLED,
    P,
    answer,
    begin,
    opened,
    probability,
)
from tests.models.test_ngrams import NGRAMS, write_ngrams
from tests.target.distributions import chi_square

NUM_ANSWERS = 2000


@pytest.fixture
def ngrams(tmp_path: Path) -> NgramModel:
    loaded = load_ngrams(write_ngrams(tmp_path, NGRAMS))
    assert loaded is not None
    return loaded


def proposer_of(ngrams: NgramModel, seed: int = 1, fan_out: int = 0) -> NgramProposer:
    return NgramProposer(ngrams, np.random.default_rng(seed), fan_out)


# Proposals


def test_greedy_proposals_take_the_likeliest_each_time(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams)
    begin(proposer, 1, (1, 0))

    (proposal,) = proposer.propose([1])

    assert (proposal.token_ids, proposal.source) == ((1, 2, 1), "ngram")
    assert (proposal.position, proposal.last_token_id) == (2, 0)
    assert proposal.distributions is None
    assert proposal.confidences == pytest.approx((0.6, 0.9, 0.5), abs=1e-3)


def test_a_proposal_ends_where_nothing_is_known(tmp_path: Path) -> None:
    loaded = load_ngrams(write_ngrams(tmp_path, {(0,): {1: 0.9}, (1,): {5: 0.9}}))
    assert loaded is not None
    proposer = proposer_of(loaded)
    begin(proposer, 1, (2, 0))
    assert proposer.propose([1])[0].token_ids == (1, 5)
    proposer.commit(Commit(1, 2, (1, 5, 7), 3, 0))
    assert proposer.propose([1])[0].token_ids == ()


@pytest.mark.parametrize("fan_out", [0, 4])
def test_a_commit_that_adds_nothing_is_rejected(ngrams: NgramModel, fan_out: int) -> None:
    proposer = proposer_of(ngrams, fan_out=fan_out)
    begin(proposer, 1, (1, 0))
    with pytest.raises(SessionRejectedError, match="adds nothing"):
        proposer.commit(Commit(1, 2, (), 3, 0))


def test_a_depth_beyond_all_bounds_is_the_largest(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams)
    begin(proposer, 1, (1, 0))
    proposer.commit(Commit(1, 2, (1,), 2**32 - 1, 0))

    assert len(proposer.propose([1])[0].token_ids) <= MAX_DEPTH


def test_however_cold_a_draw_is_one(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams)
    proposer.open(opened(1, (1, 0), SamplingSettings(1e-6)))
    proposer.commit(Commit(1, 2, (0,), 3, 0))

    assert proposer.propose([1])[0].token_ids == (1, 2, 1)


@pytest.mark.parametrize(
    "sampling",
    [SAMPLED, SamplingSettings(0.7, top_p=0.9), SamplingSettings(1.5, top_k=2)],
)
def test_shares_are_filtered_as_a_models_logits_are(
    ngrams: NgramModel, sampling: SamplingSettings
) -> None:
    proposer = proposer_of(ngrams)
    proposer.open(opened(1, (1,), sampling))
    proposer.commit(Commit(1, 1, (0,), 1, 0))
    (proposal,) = proposer.propose([1])

    row = np.array([[NGRAMS[0,][i] for i in range(NUM_TOKENS)]])
    logits = torch.from_numpy(row / row.sum()).log()
    expected = truncate(logits, BatchSampling.of([sampling], torch.device("cpu")), NUM_TOKENS)
    assert proposal.distributions is not None
    support = proposal.distributions.probabilities[0] > 0
    wanted = expected.probabilities[0] > 0
    assert proposal.distributions.token_ids[0][support].tolist() == (
        expected.token_ids[0][wanted].tolist()
    )
    np.testing.assert_allclose(
        proposal.distributions.probabilities[0][support],
        expected.probabilities[0][wanted],
        rtol=2e-3,
    )


def test_a_missed_commit_is_noticed(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams)
    begin(proposer, 1, (1, 0))
    with pytest.raises(SessionRejectedError, match="reopen"):
        proposer.commit(Commit(1, 5, (1,), 3, 0))
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(Commit(1, 2, (1,), 3, 0))


# In use


def test_the_method_copies_where_it_can_and_guesses_elsewhere(tmp_path: Path) -> None:
    known = {(token_id,): {token_id + 1: 0.9} for token_id in range(20)}
    folder = write_ngrams(tmp_path, known)
    config = DraftConfig.model_validate({"method": "ngram", "ngram": {"model": str(folder)}})
    proposer = make_proposer(config)
    begin(proposer, 1, REPETITIVE)
    begin(proposer, 2, (15, 11, 14))

    assert proposer.propose([1, 2])[0].source == "prompt_lookup"
    (guess,) = proposer.propose([2])
    assert (guess.source, guess.token_ids) == ("ngram", (15, 16, 17))

    reconfigure(proposer, LiveDraftConfig(sources=("ngram",)))
    assert {p.source for p in proposer.propose([1, 2])} == {"ngram"}
    reconfigure(proposer, LiveDraftConfig(sources=("prompt_lookup",)))
    assert {p.source for p in proposer.propose([1, 2])} == {"prompt_lookup"}


def test_a_folder_without_ngrams_is_no_draft(tmp_path: Path) -> None:
    for model, complaint in (
        (str(tmp_path), f"has no {NGRAM_FILE}.*--only ngrams"),
        (str(tmp_path / "none"), "no such folder"),
        ("bundled:smollm2-135m-instruct", "is not a draft"),
    ):
        config = DraftConfig.model_validate({"method": "ngram", "ngram": {"model": model}})
        with pytest.raises(InvalidConfigError, match=complaint):
            make_proposer(config)
    with pytest.raises(ValueError, match="the field `ngram` is missing"):
        DraftConfig.model_validate({"method": "ngram"})


# Drafting ahead


def begin_ahead(proposer: NgramProposer) -> Proposal:
    """A greedy session of the tokens 1, 0 and what is proposed for it."""
    proposer.open(opened(1, (1,)))
    proposer.commit(Commit(1, 1, (0,), 2, 0))
    (proposal,) = proposer.propose([1])
    return proposal


def test_what_follows_each_likely_outcome_is_sent_ahead(ngrams: NgramModel) -> None:
    ahead, alone = proposer_of(ngrams, fan_out=8), proposer_of(ngrams)
    proposal = begin_ahead(ahead)
    assert not ahead.work()  # nobody else waits
    sent = ahead.take_ahead()

    assert len(sent) > 3
    assert ahead.take_ahead() == []
    for after in sent:
        begin_ahead(alone)
        added = (*proposal.token_ids[: after.position - 3], after.last_token_id)
        alone.commit(Commit(1, 2, added, 2, 0))
        (expected,) = alone.propose([1])
        assert (after.position, after.last_token_id) == (expected.position, expected.last_token_id)
        assert after.token_ids == expected.token_ids
        assert after.source == "ngram"


def commit_the_foreseen(proposer: NgramProposer) -> int:
    """Lets the first outcome happen that was drafted for; the length of the request then."""
    proposal = begin_ahead(proposer)
    proposer.work()
    after = proposer.take_ahead()[0]
    added = (*proposal.token_ids[: after.position - 3], after.last_token_id)
    proposer.commit(Commit(1, 2, added, 2, 0))
    return after.position


def test_what_was_sent_ahead_is_not_answered_again(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams, fan_out=8)
    length = commit_the_foreseen(proposer)

    assert proposer.propose([1]) == []
    proposer.work()
    assert {p.position for p in proposer.take_ahead()} > {length + 1}


def test_an_answer_that_was_sent_ahead_is_never_followed_by_silence(ngrams: NgramModel) -> None:
    """A router takes a draft that owes for a second for a stalled one."""
    proposer = proposer_of(ngrams, fan_out=8)
    length = commit_the_foreseen(proposer)
    proposer.leave_out(1, [(length, token) for length in range(20) for token in range(10)])
    proposer.work()

    (nothing,) = proposer.take_ahead()
    assert (nothing.position, nothing.token_ids) == (length, ())


def test_what_was_not_foreseen_is_answered(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams, fan_out=1)
    begin_ahead(proposer)
    proposer.work()
    foreseen = {(p.position, p.last_token_id) for p in proposer.take_ahead()}
    added = next(t for t in range(3) if (3, t) not in foreseen)
    proposer.commit(Commit(1, 2, (added,), 2, 0))

    assert len(foreseen) == 1
    assert [p.position for p in proposer.propose([1])] == [3]


def test_outcomes_that_somebody_else_serves_are_left_out(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams, fan_out=8)
    begin_ahead(proposer)
    proposer.work()
    first, *others = [(p.position, p.last_token_id) for p in proposer.take_ahead()]
    proposer.open(opened(1, (1,)))
    proposer.commit(Commit(1, 1, (0,), 2, 0))
    proposer.propose([1])
    proposer.leave_out(1, {first})
    proposer.work()

    assert [(p.position, p.last_token_id) for p in proposer.take_ahead()] == others


def test_it_says_for_whom_it_drafts_ahead(ngrams: NgramModel) -> None:
    proposer = proposer_of(ngrams, fan_out=8)
    begin_ahead(proposer)
    begin(proposer, 2, (1, 0))
    proposer.propose([2])

    assert [(proposer.work(), proposer.worked_for()) for _ in range(3)] == [
        (True, (1,)),
        (False, (2,)),
        (False, ()),
    ]


@pytest.mark.parametrize("end", ["closed", "depth 0"])
def test_nobody_drafts_for_what_is_over(ngrams: NgramModel, end: str) -> None:
    proposer = proposer_of(ngrams, fan_out=8)
    begin_ahead(proposer)
    if end == "closed":
        proposer.work()
        proposer.close(1)
    else:
        proposer.commit(Commit(1, 2, (2,), 0, 0))

    assert not proposer.work()
    assert proposer.take_ahead() == []


# Losslessness


def test_tokens_are_drawn_from_what_is_shipped(ngrams: NgramModel) -> None:
    """And wherever the same tokens came before, the same is shipped."""
    proposer = proposer_of(ngrams)
    drawn: dict[tuple[int, ...], Counter[int]] = {}
    shipped: dict[tuple[int, ...], np.ndarray] = {}
    proposer.open(opened(1, (1,), SAMPLED))
    proposer.commit(Commit(1, 1, (0,), 3, 0))
    for _ in range(1500):
        (proposal,) = proposer.propose([1])
        for place, token_id in enumerate(proposal.token_ids):
            before = proposal.token_ids[:place]
            q = dense(proposal, place)
            np.testing.assert_array_equal(shipped.setdefault(before, q), q)
            drawn.setdefault(before, Counter())[token_id] += 1
    for before in ((), (2,), (0,)):
        is_possible = shipped[before] > 0
        counts = np.array([drawn[before][i] for i in range(NUM_TOKENS)])[is_possible]
        expected = counts.sum() * shipped[before][is_possible]
        assert chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > ALPHA


def dense(proposal: Proposal, place: int) -> np.ndarray:
    assert proposal.distributions is not None
    q = np.zeros(NUM_TOKENS)
    row = proposal.distributions
    np.add.at(q, row.token_ids[place], row.probabilities[place])
    return q


Write = Callable[
    [HybridProposer, int, Counter[str], np.random.Generator], tuple[int, ...]
]  # one answer


def p_value(
    proposer: HybridProposer, used: Counter[str], write: Write = answer, num: int = NUM_ANSWERS
) -> float:
    rng = np.random.default_rng(4)
    counts = Counter(write(proposer, i, used, rng) for i in range(num))
    texts = list(product(range(NUM_TOKENS), repeat=LENGTH))
    expected = [num * probability(text) for text in texts]
    return chi_square(np.array([counts[text] for text in texts]), np.array(expected))


def test_sampled_output_has_the_targets_distribution(ngrams: NgramModel) -> None:
    used: Counter[str] = Counter()
    proposer = HybridProposer(PromptLookup(PromptLookupConfig()), proposer_of(ngrams))

    assert p_value(proposer, used) > ALPHA
    assert min(used["ngram"], used["prompt_lookup"]) > 300


def answer_ahead(
    proposer: HybridProposer, session_id: int, used: Counter[str], rng: np.random.Generator
) -> tuple[int, ...]:
    """A target that verifies what was proposed, ahead of time or now, or else one token."""
    text = list(PROMPT)
    added = (int(rng.choice(NUM_TOKENS, p=P[text[-2], text[-1]])),)
    known: dict[tuple[int, int], Proposal] = {}
    proposer.open(opened(session_id, PROMPT, SAMPLED))
    while len(text) + len(added) < len(PROMPT) + LENGTH:
        proposer.commit(Commit(session_id, len(text), added, 2, sent_at_ns=0))
        text += added
        was_known = known.get((len(text), text[-1]))
        sent = proposer.propose([session_id])
        proposer.work()
        known = {(p.position, p.last_token_id): p for p in (*sent, *proposer.take_ahead())}
        proposal = was_known or known.get((len(text), text[-1]))
        used["ahead" if was_known and was_known.source == "ngram" else "now"] += 1
        context = [*text, *(proposal.token_ids if proposal else ())]
        places = range(len(text), len(context) + 1)
        rows = np.array([P[context[i - 2], context[i - 1]] for i in places])
        q = proposal.distributions if proposal else None
        added = verify(rows, context[len(text) :], q, rng).token_ids
    proposer.close(session_id)
    return tuple((*text, *added)[len(PROMPT) :][:LENGTH])


def test_sampled_output_has_the_targets_distribution_with_answers_sent_ahead(
    ngrams: NgramModel,
) -> None:
    used: Counter[str] = Counter()
    proposer = HybridProposer(
        PromptLookup(PromptLookupConfig(min_ngram=4)), proposer_of(ngrams, fan_out=4)
    )

    assert p_value(proposer, used, answer_ahead, 800) > ALPHA
    assert used["ahead"] > 200


class Peeking(NgramProposer):
    """Breaks the rule: proposes nothing where it has drawn what it thinks less likely."""

    def propose(self, session_ids: list[int]) -> list[Proposal]:
        (proposal,) = super().propose(session_ids)
        is_first = (
            proposal.distributions is None
            or proposal.token_ids[0] == proposal.distributions.token_ids[0, 0]
        )
        return [
            proposal if is_first else self._states[session_ids[0]].session.proposal((), "ngram")
        ]


def test_a_choice_by_the_drawn_token_would_show(ngrams: NgramModel) -> None:
    """The power of the test above."""
    peeking = HybridProposer(
        PromptLookup(PromptLookupConfig()), Peeking(ngrams, np.random.default_rng(1))
    )
    peeking.sources = frozenset(["ngram"])

    assert p_value(peeking, Counter()) < ALPHA**2
