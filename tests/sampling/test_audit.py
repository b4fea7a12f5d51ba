"""An honest source is left alone for ever; liars are caught in a stated number of tokens."""

from collections.abc import Callable

import numpy as np
import pytest

from specray.sampling.audit import DistributionAudit, SecretScores
from specray.types import TruncatedDistributions

VOCAB_SIZE = 500
SUPPORT = 8
DEPTH = 4
Draw = Callable[[np.random.Generator, TruncatedDistributions], np.ndarray]


def shipped(rng: np.random.Generator) -> TruncatedDistributions:
    """Another context at each position: any tokens, from nearly flat to nearly certain."""
    ids = np.stack([rng.choice(VOCAB_SIZE, SUPPORT, replace=False) for _ in range(DEPTH)])
    sharpness = rng.choice([0.1, 0.5, 3.0], size=DEPTH)
    rows = np.stack([np.sort(rng.dirichlet(np.full(SUPPORT, s)))[::-1] for s in sharpness])
    rows = np.maximum(rows, 1e-9).astype(np.float32)
    return TruncatedDistributions(ids.astype(np.int32), rows / rows.sum(axis=1, keepdims=True))


def drawn_with(probabilities: np.ndarray, q: TruncatedDistributions, rng) -> np.ndarray:
    cumulated = probabilities.astype(float).cumsum(axis=1)
    columns = (rng.random((DEPTH, 1)) * cumulated[:, -1:] >= cumulated).sum(axis=1)
    return q.token_ids[np.arange(DEPTH), columns]


def honest(rng: np.random.Generator, q: TruncatedDistributions) -> np.ndarray:
    return drawn_with(q.probabilities, q, rng)


def permuted(rng: np.random.Generator, q: TruncatedDistributions) -> np.ndarray:
    return drawn_with(q.probabilities[:, ::-1], q, rng)


def sharpened(rng: np.random.Generator, q: TruncatedDistributions) -> np.ndarray:
    return drawn_with(q.probabilities**1.5, q, rng)


def flattened(rng: np.random.Generator, q: TruncatedDistributions) -> np.ndarray:
    return drawn_with(q.probabilities**0.5, q, rng)


def greedy(rng: np.random.Generator, q: TruncatedDistributions) -> np.ndarray:
    return q.token_ids[:, 0]


def tokens_until_caught(draw: Draw, seed: int, limit: int) -> int | None:
    rng = np.random.default_rng(seed)
    audit = DistributionAudit(SecretScores(VOCAB_SIZE, np.random.default_rng(seed + 1000)))
    for num_tokens in range(DEPTH, limit + DEPTH, DEPTH):
        q = shipped(rng)
        audit.observe(draw(rng, q), q)
        if audit.is_caught:
            return num_tokens
    return None


@pytest.mark.parametrize("seed", range(5))
def test_an_honest_source_is_not_caught(seed: int) -> None:
    """Were the seeds free, each run would fail with probability at most 1e-6, however long."""
    assert tokens_until_caught(honest, seed, limit=8000) is None


@pytest.mark.parametrize(
    ("draw", "limit"),
    [(permuted, 120), (greedy, 300), (sharpened, 1500), (flattened, 1000)],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_lying_source_is_caught(draw: Draw, limit: int, seed: int) -> None:
    assert tokens_until_caught(draw, seed, limit) is not None


def test_long_honesty_is_no_licence_to_lie() -> None:
    """The first epochs' losses are behind it: it is caught about as soon as at the beginning."""
    rng = np.random.default_rng(7)
    audit = DistributionAudit(SecretScores(VOCAB_SIZE, np.random.default_rng(8)))
    certain = shipped(rng)
    for _ in range(2**16 // DEPTH):
        audit.observe(honest(rng, certain), certain)
    assert not audit.is_caught

    num_tokens = 0
    while not audit.is_caught and num_tokens < 600:
        q = shipped(rng)
        audit.observe(greedy(rng, q), q)
        num_tokens += DEPTH
    assert audit.is_caught


def test_a_fixed_token_with_a_tiny_claimed_probability_is_caught() -> None:
    audit = DistributionAudit(SecretScores(VOCAB_SIZE, np.random.default_rng(1)))
    ids = np.arange(SUPPORT, dtype=np.int32)
    probabilities = np.array([0.99, *[0.01 / (SUPPORT - 1)] * (SUPPORT - 1)], np.float32)
    claimed = TruncatedDistributions(ids[None], probabilities[None])
    for _ in range(150):
        audit.observe(np.array([5]), claimed)
    assert audit.is_caught


def test_false_alarms_stay_below_their_bound() -> None:
    """At a bound of 0.2, at most 0.2 of honest sources are ever caught (here 40 of them)."""
    num_caught = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        audit = DistributionAudit(SecretScores(VOCAB_SIZE, rng), max_false_alarm=0.2)
        for _ in range(60):
            q = shipped(rng)
            audit.observe(honest(rng, q), q)
        num_caught += audit.is_caught
    assert num_caught <= 8


def test_a_token_outside_its_distribution_is_caught_at_once_and_for_ever() -> None:
    audit = DistributionAudit(SecretScores(VOCAB_SIZE, np.random.default_rng(1)))
    claimed = TruncatedDistributions(
        np.array([[3, 0]], np.int32), np.array([[1.0, 0.0]], np.float32)
    )
    audit.observe(np.array([3]), claimed)
    assert not audit.is_caught
    audit.observe(np.array([0]), claimed)  # the padding's id: probability 0
    assert audit.is_caught
    audit.observe(np.array([3]), claimed)
    assert audit.is_caught


def test_certain_tokens_are_no_evidence() -> None:
    audit = DistributionAudit(SecretScores(VOCAB_SIZE, np.random.default_rng(1)))
    untouched = audit.log_wealth
    for _ in range(1000):
        certain = TruncatedDistributions(np.array([[3]], np.int32), np.array([[1.0]], np.float32))
        audit.observe(np.array([3]), certain)
    assert audit.log_wealth == pytest.approx(untouched)
