"""Whether depths chosen by confidence leave the output's distribution as it is.

Two tokens are drafted from truncated distributions and verified by the reference of speculative
sampling. The test statistic is Pearson's chi-square of the first two tokens of the output against
the target's own distribution. All seeds are fixed. Were they not, a sound policy would fail one of
the tests with a probability of `SIGNIFICANCE`, 1e-6.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from specray.control.acceptance import request_acceptance
from specray.control.depth import Batch, Chains, plan_depths
from specray.control.roofline import Numbers, StepLoad
from specray.control.survival import Offer, SurvivalModel, Verification
from specray.sampling.reference import verify
from specray.types import TruncatedDistributions

VOCAB = 3
DEPTH = 2
SIGNIFICANCE = 1e-6
NUM_DRAWS = 6000
TARGET_FIRST = np.array([0.5, 0.3, 0.2])
TARGET_NEXT = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.4, 0.3]])  # by the token before
DRAFT_FIRST = np.array([0.3, 0.5, 0.2])
# Sure after one token, unsure after another: the second place's confidence tells the first token.
DRAFT_NEXT = np.array([[0.98, 0.01, 0.01], [0.34, 0.33, 0.33], [0.6, 0.2, 0.2]])

Policy = Callable[[tuple[int, ...], TruncatedDistributions], int]


class Steep:
    """Steps in which the first draft token is dear and the second free, as of padded graphs."""

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        return np.where(num_drafts > 0, 1.75, 1.0)


class Even:
    """Steps whose cost per token makes about every second token worth it."""

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        return 1.0 + 0.32 * num_drafts


def survivals(q: TruncatedDistributions, model: SurvivalModel) -> Chains:
    return model.chains([Offer(request_acceptance(), "model", DEPTH, 1.0, q.largest())])


def trained() -> SurvivalModel:
    """A model for a draft that is right as often as it is sure."""
    rng, model = np.random.default_rng(1), SurvivalModel()
    for _ in range(1000):
        confidence = float(rng.uniform(0.1, 0.95))
        offer = Offer(request_acceptance(), "model", 1, 1.0, (confidence,))
        model.observe([Verification(offer, int(rng.random() < confidence))])
    return model


def by_survival(step_time: Steep | Even) -> Policy:
    """Ours: the survival model on the distributions' confidences, then the fast loop."""
    model, batch = trained(), Batch(StepLoad(1, 1, 0), 1)
    return lambda _, q: plan_depths(survivals(q, model), batch, step_time).depths[0]


def by_best_of_all() -> Policy:
    """A subtle fault: the best depth whatever lies before it, so that a sure second token decides
    about the first, on which its sureness depends."""
    model = trained()

    def choose(_: tuple[int, ...], q: TruncatedDistributions) -> int:
        expected = 1 + np.concatenate(([0.0], survivals(q, model).survivals[0].cumsum()))
        return int(np.argmax(expected / Steep().predict(StepLoad(1, 1, 0), np.arange(DEPTH + 1.0))))

    return choose


def by_drawn_token(tokens: tuple[int, ...], q: TruncatedDistributions) -> int:
    """The naive rule: cut where the token that was drawn is unlikely."""
    for place, token in enumerate(tokens):
        if q.probabilities[place, token] < 0.4:
            return place
    return len(tokens)


def outputs(policy: Policy, num_draws: int, seed: int) -> np.ndarray:  # [VOCAB, VOCAB]
    """How often each pair of first tokens came, request by request until there are two."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((VOCAB, VOCAB))
    ids = np.tile(np.arange(VOCAB, dtype=np.int32), (DEPTH, 1))
    for _ in range(num_draws):
        first = int(rng.choice(VOCAB, p=DRAFT_FIRST))
        tokens = (first, int(rng.choice(VOCAB, p=DRAFT_NEXT[first])))
        q = TruncatedDistributions(ids, np.stack([DRAFT_FIRST, DRAFT_NEXT[first]]).astype("f4"))
        depth = policy(tokens, q)
        target = np.stack([TARGET_FIRST, TARGET_NEXT[first], np.full(VOCAB, 1 / VOCAB)])
        added = verify(target[: depth + 1], tokens[:depth], q.prefix(depth), rng).token_ids
        second = added[1] if len(added) > 1 else int(rng.choice(VOCAB, p=TARGET_NEXT[added[0]]))
        counts[added[0], second] += 1
    return counts


def p_value(counts: np.ndarray) -> float:
    expected = counts.sum() * TARGET_FIRST[:, None] * TARGET_NEXT
    return float(stats.chisquare(counts.ravel(), expected.ravel()).pvalue)


@pytest.mark.parametrize("step_time", [Even(), Steep()])
def test_our_policy_keeps_the_distribution(step_time: Steep | Even) -> None:
    assert p_value(outputs(by_survival(step_time), NUM_DRAWS, seed=0)) > SIGNIFICANCE


def test_our_policy_is_not_tested_in_vain() -> None:
    policy, depths = by_survival(Even()), set()
    ids = np.tile(np.arange(VOCAB, dtype=np.int32), (DEPTH, 1))
    for row in DRAFT_NEXT:
        q = TruncatedDistributions(ids, np.stack([DRAFT_FIRST, row]).astype("f4"))
        depths.add(policy((0, 0), q))
    assert len(depths) > 1  # it does cut by what the draft is confident of


@pytest.mark.parametrize("policy", [by_drawn_token, by_best_of_all()])
def test_faulty_rules_are_caught(policy: Policy) -> None:
    assert p_value(outputs(policy, NUM_DRAWS, seed=0)) < SIGNIFICANCE


# Behind the drawn token the target's own guess, which and how sure follows from that token.
GUESS = (0, 1, 2)
SURE = (0.9, 0.35, 0.9)


def outputs_with_tail(row: Callable[[int], np.ndarray], num_draws: int) -> np.ndarray:
    """As `outputs`, with a tail verified by what `row` says of it; [VOCAB, VOCAB]."""
    rng, model, batch = np.random.default_rng(0), trained(), Batch(StepLoad(1, 1, 0), 1)
    counts = np.zeros((VOCAB, VOCAB))
    ids = np.arange(VOCAB, dtype=np.int32)[None]
    for _ in range(num_draws):
        first = int(rng.choice(VOCAB, p=DRAFT_FIRST))
        drawn = TruncatedDistributions(ids, DRAFT_FIRST[None].astype("f4"))
        tail = Offer(request_acceptance(), "stop_gap_ngram", 1, 1.0, (SURE[first],))
        offer = Offer(request_acceptance(), "model", 1, 1.0, drawn.largest(), tail)
        depth = plan_depths(model.chains([offer]), batch, Even()).depths[0]
        q = drawn.followed_by(TruncatedDistributions(ids, row(GUESS[first])[None].astype("f4")))
        target = np.stack([TARGET_FIRST, TARGET_NEXT[first], np.full(VOCAB, 1 / VOCAB)])
        tokens = (first, GUESS[first])
        added = verify(target[: depth + 1], tokens[:depth], q.prefix(depth), rng).token_ids
        second = added[1] if len(added) > 1 else int(rng.choice(VOCAB, p=TARGET_NEXT[added[0]]))
        counts[added[0], second] += 1
    return counts


def test_a_guess_behind_a_drawn_token_keeps_the_distribution() -> None:
    certain = np.eye(VOCAB)
    assert p_value(outputs_with_tail(lambda token_id: certain[token_id], NUM_DRAWS)) > SIGNIFICANCE


def test_a_guess_that_counts_as_drawn_is_caught() -> None:
    drawn = DRAFT_NEXT
    assert p_value(outputs_with_tail(lambda token_id: drawn[token_id], NUM_DRAWS)) < SIGNIFICANCE


def test_a_tail_is_taken_where_it_is_sure_and_never_decides_on_what_stands_before() -> None:
    model, batch = trained(), Batch(StepLoad(1, 1, 0), 1)
    depths = {}
    for own in (0.2, 0.9):
        for sure in SURE:
            tail = Offer(request_acceptance(), "stop_gap_ngram", 1, 1.0, (sure,))
            offer = Offer(request_acceptance(), "model", 1, 1.0, (own,), tail)
            depths[own, sure] = plan_depths(model.chains([offer]), batch, Even()).depths[0]
    assert {depths[0.2, sure] for sure in SURE} == {0}
    assert {depths[0.9, sure] for sure in SURE} == {1, 2}
