"""Speculative sampling keeps the target's distribution, and the test would see it if not."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from specray.sampling.reference import verify
from specray.types import TruncatedDistributions
from tests.sampling.ahead import write_ahead
from tests.target.distributions import chi_square

ALPHA = 1e-4  # chance that an exact method fails a test, were its seed not fixed
VOCAB_SIZE = 5
NUM_DRAWS = 8000
Table = NDArray[np.float64]


class Chain:
    """A language of texts up to three tokens long: one distribution per prefix."""

    def __init__(self, seed: int, concentration: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self._rows = {
            prefix: rng.dirichlet(np.full(VOCAB_SIZE, concentration))
            for length in range(3)
            for prefix in product(range(VOCAB_SIZE), repeat=length)
        }

    def __call__(self, prefix: tuple[int, ...]) -> Table:
        return self._rows[prefix]


class Draft:
    """Draws up to `depth` tokens from the `support` likeliest of a chain, and ships that."""

    def __init__(self, chain: Chain, support: int, depth: int) -> None:
        self._chain, self._support, self._depth = chain, support, depth

    def __call__(self, rng: np.random.Generator) -> tuple[tuple[int, ...], TruncatedDistributions]:
        text: tuple[int, ...] = ()
        ids = np.zeros((self._depth, self._support), np.int32)
        probabilities = np.zeros((self._depth, self._support), np.float32)
        for position in range(self._depth):
            q = self._chain(text)
            ids[position] = np.argsort(-q)[: self._support]
            probabilities[position] = q[ids[position]] / q[ids[position]].sum()
            exact = probabilities[position].astype(float)
            text += (int(rng.choice(ids[position], p=exact / exact.sum())),)
        return text, TruncatedDistributions(ids, probabilities)


def p_value(target: Chain, proposals, rng: np.random.Generator, length: int) -> float:
    """Chi-square of the texts of `length` tokens that speculation writes against the target's."""
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_DRAWS):
        text: tuple[int, ...] = ()
        while len(text) < length:
            drafted, distributions = proposals(rng) if not text else ((), None)
            rows = np.array([target(text + drafted[:i]) for i in range(len(drafted) + 1)])
            text += verify(rows, drafted, distributions, rng).token_ids
        counts[text[:length]] += 1
    texts = list(product(range(VOCAB_SIZE), repeat=length))
    expected = [NUM_DRAWS * np.prod([target(t[:i])[t[i]] for i in range(length)]) for t in texts]
    return chisquare([counts[text] for text in texts], expected).pvalue


@pytest.mark.parametrize("support", [VOCAB_SIZE, 2, 1], ids=["whole", "truncated", "one token"])
@pytest.mark.parametrize("depth", [1, 2])
def test_honest_drafts_keep_the_targets_distribution(support: int, depth: int) -> None:
    draft = Draft(Chain(seed=2), support, depth)
    assert p_value(Chain(seed=1, concentration=3.0), draft, np.random.default_rng(7), 2) > ALPHA


@pytest.mark.parametrize("token_ids", [(0,), (3, 1)])
def test_point_masses_keep_the_targets_distribution(token_ids: tuple[int, ...]) -> None:
    target = Chain(seed=1, concentration=3.0)
    assert p_value(target, lambda _: (token_ids, None), np.random.default_rng(8), 2) > ALPHA


def test_a_sampled_draft_without_distributions_keeps_the_targets_distribution() -> None:
    draft = Draft(Chain(seed=2), VOCAB_SIZE, depth=2)
    target = Chain(seed=1, concentration=3.0)
    pv = p_value(target, lambda rng: (draft(rng)[0], None), np.random.default_rng(9), 2)
    assert pv > ALPHA


def test_a_lying_draft_is_detected() -> None:
    """The power of the tests above: ships one distribution, draws from another."""
    honest, other = Draft(Chain(seed=2), 4, depth=1), Draft(Chain(seed=3), 4, depth=1)
    target = Chain(seed=1, concentration=3.0)

    def lie(rng: np.random.Generator) -> tuple[tuple[int, ...], TruncatedDistributions]:
        return other(rng)[0], honest(rng)[1]

    assert p_value(target, lie, np.random.default_rng(10), 2) < 1e-12


def test_a_draft_equal_to_the_target_is_accepted_whole() -> None:
    target = Chain(seed=1)
    draft = Draft(target, VOCAB_SIZE, depth=2)
    rng = np.random.default_rng(11)
    for _ in range(50):
        token_ids, distributions = draft(rng)
        rows = np.array([target(token_ids[:i]) for i in range(3)])
        # float32 against float64: the same up to rounding, so accepted but for one in a million
        assert verify(rows, token_ids, distributions, rng).num_accepted == 2


def test_without_a_proposal_the_target_decodes_plainly() -> None:
    verdict = verify(np.array([[0.0, 1.0, 0.0]]), (), None, np.random.default_rng(0))
    assert verdict == ((1,), 0)


def test_an_impossible_token_is_replaced() -> None:
    rows = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert verify(rows, (0,), None, np.random.default_rng(0)) == ((1,), 0)


# Drafting ahead.

LENGTH = 3
NUM_AHEAD = 4000


def p_value_ahead(
    uniforms: Callable[[np.random.Generator], Callable[[], Sequence[float]]],
    depth: int,
    fan_out: int,
    seed: int,
) -> float:
    """Chi-square of the texts that are written ahead against the target's.

    `uniforms` makes, for each text, the source of its proposals' random numbers.
    """
    target, draft = Chain(seed=1, concentration=3.0), Chain(seed=2)

    def no_further(text: tuple[int, ...]) -> Table:
        """Chains know texts of two tokens; what is drafted beyond is not part of any."""
        return draft(text[:2])

    def also_no_further(text: tuple[int, ...]) -> Table:
        return target(text[:2])

    rng = np.random.default_rng(seed)
    counts = Counter(
        write_ahead(also_no_further, no_further, LENGTH, depth, fan_out, uniforms(rng), rng)
        for _ in range(NUM_AHEAD)
    )
    texts = list(product(range(VOCAB_SIZE), repeat=LENGTH))
    expected = np.array([np.prod([target(t[:i])[t[i]] for i in range(LENGTH)]) for t in texts])
    return chi_square(np.array([counts[text] for text in texts]), expected * NUM_AHEAD)


def fresh(rng: np.random.Generator) -> Callable[[], Sequence[float]]:
    return lambda: rng.random(8).tolist()


def shared(rng: np.random.Generator) -> Callable[[], Sequence[float]]:
    """The naive way: the same numbers for a proposal and for what is drafted behind it."""
    numbers = rng.random(8).tolist()
    return lambda: numbers


@pytest.mark.parametrize("fan_out", [2, VOCAB_SIZE])
def test_drafting_ahead_keeps_the_targets_distribution(fan_out: int) -> None:
    assert p_value_ahead(fresh, 2, fan_out, seed=14) > ALPHA


def test_random_numbers_shared_with_what_is_drafted_ahead_are_detected() -> None:
    """What a proposal and its continuations share ties these to the event that selects them."""
    assert p_value_ahead(shared, 2, VOCAB_SIZE, seed=14) < 1e-9


def test_an_answer_to_the_same_seed_is_tied_to_what_verifies_it() -> None:
    """Why answers that were drawn with a seed are never proposed to others.

    Both requests draw by the same numbers, here by inversion and then by rejection.
    """
    p, rng = np.array([0.3, 0.7]), np.random.default_rng(0)
    counts = Counter(verified_again(p, int(rng.integers(2**32))) for _ in range(4000))
    assert chi_square(np.array([counts[0], counts[1]]), 4000 * p) < 1e-9


def verified_again(p: Table, seed: int) -> int:
    earlier = int(np.random.default_rng(seed).random() >= p[0])
    rows, rng = np.stack([p, p]), np.random.default_rng(seed)
    return verify(rows, (earlier,), None, rng).token_ids[0]
